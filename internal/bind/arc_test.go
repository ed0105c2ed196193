package bind

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/train"
	"plumbline/reference/ad"
)

func arcConfig(overrides ...string) *train.Arc {
	var c train.Arc
	s := c.Settings()
	for _, o := range append([]string{"model.prompt_dim=12", "model.channels=6", "policy.ctrl_dim=3", "policy.feat_dim=4", "policy.hidden=8", "lora.r=2"}, overrides...) {
		if err := s.Override(o); err != nil {
			panic(err)
		}
	}
	if err := s.Resolve(); err != nil {
		panic(err)
	}
	return &c
}

func newArc(t testing.TB, overrides ...string) *Arc {
	a, err := NewArc(arcConfig(overrides...))
	require.NoError(t, err)
	return a
}

// What is trained: all of the encoder, its adapter, or nothing of it; the networks of curiosity only with a weight.
func TestArcParams(t *testing.T) {
	count := func(a *Arc, part string) (n int) {
		for _, p := range a.Params() {
			if strings.Contains(p.Name, part) {
				n++
			}
		}
		return n
	}
	for mode, want := range map[string][2]int{train.EncoderFull: {26, 0}, train.EncoderLoRA: {16, 16}, train.EncoderFrozen: {0, 0}} {
		a := newArc(t, "encoder.train="+mode)
		require.Equal(t, want, [2]int{count(a, arcText), count(a, ".lora_")}, mode)
		require.Equal(t, 2, count(a, "qwen.proj."))
		require.Zero(t, count(a, arcPhi))
		// A gradient of the prompt reaches exactly these, but for the factors A: their B is 0.
		tape := &ad.Tape{}
		net := a.On(tape, true)
		prompt := net.PromptOf(a.Encode("all cells stay in 3x3"))
		ones := make([]float64, 12)
		for i := range ones {
			ones[i] = float64(i + 1)
		}
		ad.Backward(prompt, ones)
		net.Collect()
		for _, p := range a.Params() {
			some := false
			for _, g := range p.Grad {
				some = some || g != 0
			}
			require.Equal(t, strings.HasPrefix(p.Name, "qwen.") && !strings.Contains(p.Name, ".lora_A"), some, "%s: %s", mode, p.Name)
		}
	}
	require.Equal(t, 12, count(newArc(t, "icm=1"), arcPhi))
	require.Empty(t, newArc(t, "icm=1").Fingerprint(), "all is trained")
	frozen := newArc(t, "encoder.train=frozen").Fingerprint()
	require.NotEmpty(t, frozen)
	require.NotEqual(t, frozen, newArc(t, "encoder.train=frozen", "encoder.name=tiny-init").Fingerprint())
}

// New weights are within ±1/√(inputs), those of the agent within ±√(6/inputs), and are numbers of float32; the text encoder is the
// model that was named; the seed decides the rest.
func TestArcInitial(t *testing.T) {
	a, b, other := newArc(t), newArc(t), newArc(t, "seed=43")
	base, _, err := Open(Tiny, 42)
	require.NoError(t, err)
	fan := 0
	for _, w := range a.model.Config.Tensors() {
		data := a.weights[w.Name]
		require.Equal(t, data, b.weights[w.Name])
		if inner, is := strings.CutPrefix(w.Name, arcText); is {
			require.Equal(t, base.Base.Data("model."+inner), data)
			continue
		}
		if len(w.Shape) > 1 {
			fan = len(data) / w.Shape[0]
		}
		bound, top := 1/math.Sqrt(float64(fan)), 0.
		if strings.HasPrefix(w.Name, "agent.") && len(w.Shape) > 1 {
			bound = math.Sqrt(6 / float64(fan))
		}
		if w.Name == "policy_rl.pi_logstd" {
			bound = 0
		} else {
			require.NotEqual(t, other.weights[w.Name], data)
		}
		for _, x := range data {
			require.Equal(t, float64(float32(x)), x)
			top = max(top, math.Abs(x))
		}
		require.LessOrEqual(t, top, bound+1e-7, w.Name)
		if len(data) > 50 {
			require.Greater(t, top, .9*bound, w.Name)
		}
	}
	_, err = NewArc(arcConfig("encoder.name=" + TinyGPTJ))
	var bad *train.ConfigError
	require.ErrorAs(t, err, &bad)
}

// A checkpoint holds every trained number, also those of an adapter, and one that does not fit is refused by the tensor's name.
func TestArcFiles(t *testing.T) {
	a := newArc(t, "encoder.train=lora")
	for _, p := range a.Params() {
		for i := range p.Data {
			p.Data[i] = float64(float32(p.Data[i] + .5))
		}
	}
	save := func(a *Arc) string {
		dir := t.TempDir()
		files, err := a.Files()
		require.NoError(t, err)
		for _, f := range files {
			require.NoError(t, format.WriteFile(filepath.Join(dir, f.Name), f.Write))
		}
		return dir
	}
	dir := save(a)
	b := newArc(t, "encoder.train=lora", "seed=5")
	require.NoError(t, b.Restore(dir))
	for i, p := range b.Params() {
		require.Equal(t, a.Params()[i].Data, p.Data, p.Name)
	}
	err := newArc(t, "encoder.train=lora", "model.channels=7").Restore(dir)
	require.True(t, format.IsMalformed(err), "%v", err)
	require.ErrorContains(t, err, "agent.input_encoder.0.weight: has shape [6 10 3 3], want [7 10 3 3]")
	require.NoError(t, os.Remove(filepath.Join(dir, arcLoRAFile)))
	require.ErrorIs(t, b.Restore(dir), os.ErrNotExist)
	_, err = os.Stat(filepath.Join(save(newArc(t)), arcLoRAFile))
	require.ErrorIs(t, err, os.ErrNotExist)
}
