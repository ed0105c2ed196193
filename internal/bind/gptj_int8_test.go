package bind_test

import (
	"math"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/bind"
	"plumbline/internal/format"
	"plumbline/internal/format/hf"
	"plumbline/internal/format/peft"
	"plumbline/internal/rng"
	"plumbline/internal/train"
	"plumbline/reference/quant"
)

// The base computes with what its codes stand for, and the codes are those of the stored weights, half a step off at most.
func TestInt8Base(t *testing.T) {
	m, _, err := bind.Open(bind.TinyGPTJ, 1)
	require.NoError(t, err)
	plain, _, err := bind.Open(bind.TinyGPTJ, 1)
	require.NoError(t, err)
	codes, err := bind.Int8Base(m.Base)
	require.NoError(t, err)
	require.Len(t, codes, 12)
	worst := 0.0
	for name, q := range codes {
		stored, got := plain.Base.Data(name+".weight"), m.Base.Data(name+".weight")
		for i, v := range got {
			absmax := q.AbsMax[i/q.Cols]
			require.Equal(t, float64(q.Codes[i])*absmax*quant.Inv127Float32, v)
			worst = max(worst, math.Abs(v-stored[i])/absmax)
			require.LessOrEqual(t, math.Abs(float64(q.Codes[i])), 127.)
		}
	}
	require.LessOrEqual(t, worst, .5/127+0x1p-11) // half a step, and float16 before it
	require.Greater(t, worst, .4/127)
	for _, t2 := range m.Base.Config.Tensors() {
		if _, quantised := codes[t2.Name[:max(0, len(t2.Name)-len(".weight"))]]; !quantised {
			require.Equal(t, plain.Base.Data(t2.Name), m.Base.Data(t2.Name), t2.Name)
		}
	}
}

// An adapter on an int8 base is known by the base's files, in its own files too, and what it learns from is finite.
func TestLanguageInt8(t *testing.T) {
	m, _, err := bind.Open(bind.TinyGPTJ, 1)
	require.NoError(t, err)
	a, err := bind.NewAdapter(m.Base.Config, 2, 4, []string{"q_proj", "out_proj"}, 1)
	require.NoError(t, err)
	folder, err := hf.Open("../assets/tiny_gptj")
	require.NoError(t, err)
	defer folder.Close()
	stored, err := folder.Fingerprint()
	require.NoError(t, err)
	require.Equal(t, stored, m.Fingerprint)
	lora := train.LoRA{R: 2, Alpha: 4, Targets: []string{"q_proj", "out_proj"}}
	o := bind.Options{Adapter: a, PEFT: bind.AdapterConfig(bind.TinyGPTJ, lora), Int8: true, Fingerprint: stored}
	p, err := bind.NewLanguage(m.Base, o)
	require.NoError(t, err)
	require.Equal(t, stored, p.Fingerprint())
	files, err := p.Files()
	require.NoError(t, err)
	dir := t.TempDir()
	for _, f := range files {
		require.NoError(t, format.WriteFile(filepath.Join(dir, f.Name), f.Write))
	}
	read, err := peft.Open(dir)
	require.NoError(t, err)
	defer read.Close()
	require.Equal(t, stored, read.Fingerprint)
	require.Len(t, p.Params(), 8)
	ids, real := make([]int, 12), make([]bool, 12)
	for i := range ids {
		ids[i], real[i] = int(rng.New(3, 0).Word(uint64(i))%257), true
	}
	b := train.Batch{Rows: 2, Prompt: 3, Response: 3, IDs: ids, Real: real}
	frozen, err := p.Reference(b)
	require.NoError(t, err)
	now, err := p.Score(b)
	require.NoError(t, err)
	require.Equal(t, frozen, now.LogProbs, "B = 0: the policy is the reference, to the last bit")
	require.Panics(t, func() { _, _ = bind.NewLanguage(m.Base, bind.Options{Int8: true}) })
}

// A base that lies in no files is known by its numbers before they are quantised.
func TestFingerprintOfNumbers(t *testing.T) {
	known := map[string]bool{}
	for _, seed := range []uint64{1, 1, 2} {
		for _, int8 := range []bool{false, true} {
			m, _, err := bind.Open(bind.TinyGPTJInit, seed)
			require.NoError(t, err)
			a, err := bind.NewAdapter(m.Base.Config, 2, 4, []string{"q_proj"}, 1)
			require.NoError(t, err)
			p, err := bind.NewLanguage(m.Base, bind.Options{Adapter: a, Int8: int8, Fingerprint: m.Fingerprint})
			require.NoError(t, err)
			require.Len(t, p.Fingerprint(), 64)
			known[p.Fingerprint()] = true
		}
	}
	require.Len(t, known, 2)
}
