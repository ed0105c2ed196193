package model

import (
	"math"
	"path/filepath"
	"slices"
	"testing"

	"plumbline/reference/ad"
	"plumbline/reference/nn"

	"github.com/stretchr/testify/require"
)

// The goldens maskedgpt and judge were computed by golden/gen/models/nanogpt.py with torch 2.15.0 in float64; golden.json
// beside them says what each tensor is, and how far they are from the code of JinxCodesAI/nano_gpt itself.
const maskedGoldens = "../../golden/models"

// maskedGolden is one of them.
type maskedGolden struct {
	config maskedJSON
	base   tensorFile
	values tensorFile
}

// maskedJSON is base/config.json.
type maskedJSON struct {
	Mode  Mode
	Layer int  `json:"n_layer"`
	Head  int  `json:"n_head"`
	Embd  int  `json:"n_embd"`
	Block int  `json:"block_size"`
	Vocab int  `json:"vocab_size"`
	Bias  bool `json:"bias"`
	Mask  int  `json:"mask_token_id"`
	Pad   int  `json:"pad_token_id"`
	CLS   int  `json:"cls_token_id"`
}

func readMasked(t testing.TB, name string) maskedGolden {
	dir := filepath.Join(maskedGoldens, name)
	g := maskedGolden{base: readTensors(t, filepath.Join(dir, "base", "model.safetensors")), values: readTensors(t, filepath.Join(dir, "golden.safetensors"))}
	readJSON(t, filepath.Join(dir, "base", "config.json"), &g.config)
	return g
}

func (g maskedGolden) model(t testing.TB) *MaskedGPT {
	j := g.config
	m, err := NewMaskedGPT(MaskedGPTConfig{Mode: j.Mode, Vocab: j.Vocab, Hidden: j.Embd, Layers: j.Layer, Heads: j.Head, MaxPositions: j.Block,
		Bias: j.Bias, Mask: j.Mask, Pad: j.Pad, CLS: j.CLS, CLSEmbedding: g.base["cls_embedding"].data != nil}, g.base.weights)
	require.NoError(t, err)
	return m
}

// input returns a batch of the golden.
func (g maskedGolden) input(ids, mask string) Input {
	shape := g.values[ids].shape
	in := Input{Batch: shape[0], Time: shape[1], IDs: g.values.ints(ids)}
	if mask != "" {
		for _, v := range g.values.ints(mask) {
			in.Real = append(in.Real, v != 0)
		}
	}
	return in
}

// misses is how far each value is from the golden, relative to its largest element.
type misses map[string]float64

// outside returns the names of the values that are not within the tolerance.
func (m misses) outside() (names []string) {
	for name, d := range m {
		limit := valueTolerance
		if name == "grad" || name == "policy_grad" {
			limit = gradientTolerance
		}
		if !(d <= limit) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// gradients returns the worst relative difference of the gradients that the golden holds under a prefix; NaN if it holds
// none.
func gradients(values tensorFile, prefix string, of func(name string) *ad.Var) float64 {
	var w float64
	seen := 0
	for key, want := range values {
		if len(key) > len(prefix) && key[:len(prefix)] == prefix {
			seen++
			got := of(key[len(prefix):]).Grad()
			if len(got) != len(want.data) {
				return math.NaN()
			}
			if allZero(want.data) { // of a head that the loss does not read: the gradient is 0, not small
				for _, d := range got {
					w = max(w, math.Abs(d))
				}
				continue
			}
			w = max(w, worst(got, want.data, 1, nil))
		}
	}
	if seen == 0 {
		return math.NaN()
	}
	return w
}

// usage is how a trainer reads the model: what the goldens of a whole computation are compared by.
type usage struct {
	logits   func(logits *ad.Var) *ad.Var                           // before the log-softmax
	tokens   func(in Input, completion []int) []int                 // whose log-probability is taken
	sequence func(n *MaskedNet, in Input, completion []int) *ad.Var // [B]
	judge    func(n *MaskedNet, text Input) *ad.Var                 // [B]
}

func same(logits *ad.Var) *ad.Var                { return logits }
func asGiven(_ Input, completion []int) []int    { return completion }
func healthyJudge(n *MaskedNet, x Input) *ad.Var { return n.Score(n.Config.JudgeInput(x)) }

var healthy = usage{logits: same, tokens: asGiven, sequence: (*MaskedNet).SequenceLogProb, judge: healthyJudge}

// compareGenerator compares the language model with its golden.
func (g maskedGolden) compareGenerator(m *MaskedGPT, u usage) misses {
	in, completion := g.input("ids", "attention_mask"), g.values.ints("completion_ids")
	var tape ad.Tape
	n := m.On(&tape, func(string) bool { return true })
	hidden := n.Forward(in).Hidden
	logits := u.logits(n.Logits(hidden))
	sequence := u.sequence(n, in, completion)
	lp := nn.LogProb(logits, u.tokens(in, completion))
	at := func(name string) []float64 { return g.values["float64/"+name].data }
	w := misses{
		"hidden":        worst(hidden.Data(), at("hidden"), m.Config.Hidden, in.Real),
		"logits":        worst(logits.Data(), at("logits"), m.Config.Vocab, in.Real),
		"logp":          worst(lp.Data(), at("logp"), 1, in.Real),
		"sequence_logp": worst(sequence.Data(), at("sequence_logp"), 1, nil),
	}
	masked := 0
	for _, id := range in.IDs {
		if id == m.Config.Mask {
			masked++
		}
	}
	mean := ad.Scale(ad.Sum(sequence, false), 1/float64(masked))
	w["mean_logp"] = worst(mean.Data(), at("mean_logp"), 1, nil)
	ad.Backward(mean, []float64{1})
	w["grad"] = gradients(g.values, "float64/grad/", n.Var)
	return w
}

// compareJudge compares the judge with its golden.
func (g maskedGolden) compareJudge(m *MaskedGPT, u usage) misses {
	text, long := g.input("text_ids", "text_mask"), g.input("long_text_ids", "")
	var tape ad.Tape
	n := m.On(&tape, func(string) bool { return true })
	score := u.judge(n, text)
	d := ad.Sub(score, tape.Const(g.values["targets"].data, text.Batch))
	loss := ad.Mean(ad.Mul(d, d), false)
	ad.Backward(loss, []float64{1})
	at := func(name string) []float64 { return g.values["float64/"+name].data }
	reward := make([]float64, text.Batch)
	for i, y := range score.Data() {
		reward[i] = 1 - min(max(y, 0), 1)
	}
	return misses{
		"score":      worst(score.Data(), at("score"), 1, nil),
		"long_score": worst(u.judge(n, long).Data(), at("long_score"), 1, nil),
		"reward":     worst(reward, at("reward"), 1, nil),
		"loss":       worst(loss.Data(), at("loss"), 1, nil),
		"grad":       gradients(g.values, "float64/grad/", n.Var),
	}
}

func TestMaskedGoldens(t *testing.T) {
	g := readMasked(t, "maskedgpt")
	require.Equal(t, g.base["transformer.wte.weight"], g.base["lm_head.weight"], "the head is tied")
	w := g.compareGenerator(g.model(t), healthy)
	t.Logf("maskedgpt %v", w)
	require.Empty(t, w.outside(), "%v", w)

	j := readMasked(t, "judge")
	w = j.compareJudge(j.model(t), healthy)
	t.Logf("judge %v", w)
	require.Empty(t, w.outside(), "%v", w)
	hidden := j.model(t).On(new(ad.Tape), nil).Forward(j.input("ids", "attention_mask")).Hidden
	require.LessOrEqual(t, worst(hidden.Data(), j.values["float64/hidden"].data, 24, j.input("ids", "attention_mask").Real), valueTolerance)
	require.Equal(t, j.input("ids", "attention_mask"), j.model(t).Config.JudgeInput(j.input("text_ids", "text_mask")))
}

// The goldens hold every gradient that there is: a parameter without one would never be compared.
func TestMaskedGoldensAreWhole(t *testing.T) {
	for _, name := range []string{"maskedgpt", "judge"} {
		g := readMasked(t, name)
		for _, w := range g.model(t).Config.Tensors() {
			require.Equal(t, w.Shape, g.values["float64/grad/"+w.Name].shape, w.Name)
		}
	}
}
