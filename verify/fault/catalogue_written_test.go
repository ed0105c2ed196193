package fault_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/fault"
	"plumbline/verify/stage"
)

// written returns a batch of one file with the tensors of one column, of float32.
func written(algorithm string, rows, cols int, mask []bool, tensors map[string][]float64) *dump.Batch {
	b := &dump.Batch{Rows: rows, Cols: cols, Mask: mask, Tensors: map[string]*dump.Tensor{}, Files: []dump.FileInfo{{Hi: rows, Cols: cols, PromptCols: 1}},
		Meta: dump.Meta{Algorithm: algorithm, Align: dump.AlignResponse, WorldSize: 1, MicroBatches: 1, ScalarsScope: "micro_batch", DLogpScale: 1}}
	for range rows {
		b.Origin = append(b.Origin, dump.Origin{Cols: cols})
	}
	for name, x := range tensors {
		for i := range x {
			x[i] = float64(float32(x[i]))
		}
		t := &dump.Tensor{Name: name, Data: x}
		switch {
		case name == "loss" || name == "nll_loss":
			t.Layout = dump.PerFile
		case name == "attention_mask":
			t.Layout, t.Width = dump.PerRow, cols+1
		case len(x) == rows*cols && cols > 1:
			t.Layout, t.Width = dump.PerToken, 1
		default:
			t.Layout, t.Width = dump.PerRow, 1
		}
		b.Tensors[name] = t
	}
	return b
}

func declared(t *testing.T, texts map[string]string) *convention.Set {
	set := &convention.Set{}
	for name, text := range texts {
		v, err := convention.Parse(name, text)
		require.NoError(t, err)
		set = set.With(name, v, "test")
	}
	return set
}

// requireFault judges a batch whose output is wrong and demands that the first explanation is the bug, and that the right output passes.
func requireFault(t *testing.T, id, ch string, b *dump.Batch, set *convention.Set, right *dump.Batch) []fault.Explanation {
	t.Helper()
	require.Equal(t, check.Pass, stage.Judge(stage.Find(ch), right, set).Verdict)
	o := stage.Judge(stage.Find(ch), b, set)
	require.Equal(t, check.Fail, o.Verdict)
	list := fault.Explain(o)
	require.NotEmpty(t, list)
	require.Equal(t, id, names(list)[0])
	return list
}

// Margins of 1 and −2 at β = ½; with the policy for its reference every margin is 0 and the loss ln 2.
func TestPolicyForItsReference(t *testing.T) {
	pairs := func(loss float64) *dump.Batch {
		return written("dpo", 2, 1, make([]bool, 2), map[string][]float64{"logp_chosen": {-3, -5}, "logp_rejected": {-6, -4}, "ref_chosen": {-4, -4}, "ref_rejected": {-6, -5}, "loss": {loss}})
	}
	right := (math.Log1p(math.Exp(-.5)) + math.Log1p(math.Exp(1))) / 2
	requireFault(t, "DPO-REFERENCE-IS-POLICY", "preference/dpo_loss", pairs(math.Ln2), declared(t, map[string]string{"dpo.beta": "0.5", "dpo.loss": "sigmoid", "dpo.label_smoothing": "0"}), pairs(right))
}

// Log-probs per token of answers of 2 and 5 tokens: the cross-entropy is (3 + 5)/2, divided again (3/2 + 5/5)/2.
func TestLengthTwice(t *testing.T) {
	pairs := func(nll float64) *dump.Batch {
		return written("dpo", 2, 1, make([]bool, 2), map[string][]float64{"logp_chosen": {-3, -5}, "logp_rejected": {-6, -4}, "ref_chosen": {-4, -4}, "ref_rejected": {-6, -5}, "chosen_tokens": {2, 5},
			"nll_loss": {4}, "loss": {.25*nll + 9/2.}}) // margins 1 and −2 against 1/(2β) = 1: squares 0 and 9
	}
	set := declared(t, map[string]string{"dpo.beta": "0.5", "dpo.loss": "ipo", "dpo.nll_weight": "0.25", "agg.div_ga": "false"})
	requireFault(t, "DPO-NLL-LENGTH-TWICE", "preference/dpo_loss", pairs(1.25), set, pairs(4))
}

// Answers of 3, 2 and 1 tokens: without the third column the mean is over 5 tokens instead of 6.
func TestLastColumn(t *testing.T) {
	labels := func(loss float64) *dump.Batch {
		return written("sft", 3, 4, []bool{true, true, true, false, true, true, false, false, true, false, false, false},
			map[string][]float64{"logp_new": {-1, -2, -7, 0, -3, -4, 0, 0, -5, 0, 0, 0}, "loss": {loss}})
	}
	requireFault(t, "LOSS-LAST-COLUMN", "preference/sft_loss", labels(15./5), declared(t, map[string]string{"agg.kind": "token", "agg.denominator": "micro"}), labels(22./6))
}

// Two rows of a prompt token, of which one has one token of answer more: the entropy of all that was read, and of what predicts an answer.
func TestEntropyOfInputs(t *testing.T) {
	batch := func(logged float64) *dump.Batch {
		b := written("sft", 2, 4, []bool{false, true, true, false, false, true, false, false}, map[string][]float64{
			"logp_new": {-1, -1, -1, 0, -1, -1, 0, 0}, "entropy": {3, 1, 2, 8, 2, .5, 5, 9}, "attention_mask": {1, 1, 1, 1, 0, 1, 1, 1, 0, 0}})
		b.Files[0].Scalars = []dump.Scalar{{Name: "entropy", Value: float64(float32(logged))}}
		return b
	}
	requireFault(t, "METRIC-ENTROPY-INPUTS", "scalars/entropy", batch((3+1+2+8+2+.5+5)/7), &convention.Set{}, batch((1+2+.5)/3))
}

// Two rows with a prompt of one token: the mean of every response is over the 3 and 2 tokens that are attended to, not over its own 2 and 1.
func TestAttendedTokensCounted(t *testing.T) {
	batch := func(loss float64) *dump.Batch {
		return written("grpo", 2, 2, []bool{true, true, true, false}, map[string][]float64{"token_loss": {1, 2, 5, 0}, "loss": {loss},
			"attention_mask": {1, 1, 1, 1, 1, 0}})
	}
	set := declared(t, map[string]string{"agg.kind": "seq_mean_token_mean", "agg.denominator": "micro", "agg.div_ga": "false", "agg.empty_rows": "counted",
		"entropy.coef": "0", "kl.place": "none", "mean.eps": "0", "agg.len_eps": "0"})
	requireFault(t, "AGG-PROMPT-COUNTED", "aggregate/loss", batch((3./3+5./2)/2), set, batch((3./2+5)/2))
}

// The signed mean of what an update moved, over all cells of a batch whose padding is 0.
func TestUpdateOverAllCells(t *testing.T) {
	batch := func(logged float64) *dump.Batch {
		b := written("ppo", 2, 3, []bool{true, true, false, true, true, true}, map[string][]float64{
			"logp_new": {-1, -2, 0, -3, -1, -2}, "logp_old": {-1.5, -2, 0, -2.5, -1.25, -2.75}})
		b.Meta.Framework = "trl"
		b.Files[0].Scalars = []dump.Scalar{{Name: "approx_kl", Value: float64(float32(logged))}}
		return b
	}
	set := declared(t, map[string]string{"ratio.log_clamp": "none", "mask.tokens": "response"})
	requireFault(t, "METRIC-UPDATE-KL", "scalars/approx_kl", batch(-(0.5+0-0.5+0.25+0.75)/6), set, batch((.25+.25+.0625+.5625)/2/6))
}

// Margins of 1 and −2 at β = ½, beside ¼ of a cross-entropy that is a mean over the 2 + 5 tokens, and a mean of the sums 3 and 5.
func TestSumsOfTokens(t *testing.T) {
	pairs := func(nll float64) *dump.Batch {
		pair := (math.Log1p(math.Exp(-.5)) + math.Log1p(math.Exp(1))) / 2
		return written("dpo", 2, 1, make([]bool, 2), map[string][]float64{"logp_chosen": {-3, -5}, "logp_rejected": {-6, -4}, "ref_chosen": {-4, -4}, "ref_rejected": {-6, -5},
			"nll_loss": {8. / 7}, "loss": {pair + .25*nll}})
	}
	set := declared(t, map[string]string{"dpo.beta": "0.5", "dpo.loss": "sigmoid", "dpo.label_smoothing": "0", "dpo.nll_weight": "0.25", "agg.div_ga": "false"})
	requireFault(t, "DPO-NLL", "preference/dpo_loss", pairs(4), set, pairs(8./7))
}

// The Jensen–Shannon margin of log-ratios c and r is ln σ(c) − ln σ(r); with −c and −r it is another one.
func TestJensenShannonSign(t *testing.T) {
	sigma := func(x float64) float64 { return -math.Log1p(math.Exp(-x)) }
	pairs := func(sign float64) *dump.Batch {
		var loss []float64
		for _, p := range [][2]float64{{1, 0}, {-1, 1}, {.5, -2}} {
			loss = append(loss, -sigma(.5*(sigma(sign*p[0])-sigma(sign*p[1]))))
		}
		return written("dpo", 3, 1, make([]bool, 3), map[string][]float64{"logp_chosen": {-3, -5, -4}, "logp_rejected": {-6, -4, -7}, "ref_chosen": {-4, -4, -4.5}, "ref_rejected": {-6, -5, -5}, "pair_loss": loss})
	}
	set := declared(t, map[string]string{"dpo.beta": "0.5", "dpo.loss": "sigmoid", "dpo.label_smoothing": "0", "dpo.divergence": "js", "dpo.per_token": "false"})
	requireFault(t, "DPO-TERMS", "preference/pair_loss", pairs(-1), set, pairs(1))
}

// Labels without the prompt, and a loss and a gradient with it, over the count of the labels; of the options of a reduction none is declared.
func TestPromptTrained(t *testing.T) {
	const rows, cols, prompt = 4, 10, 3
	batch := func(from int) *dump.Batch {
		mask, lp, d, sum := make([]bool, rows*cols), make([]float64, rows*cols), make([]float64, rows*cols), 0.0
		for i := range mask {
			lp[i] = -.5 - math.Mod(float64(i)*.37, 2)
			if i%cols < cols-i/cols && i%cols >= prompt {
				mask[i] = true
			}
		}
		n := 0.0
		for _, m := range mask {
			if m {
				n++
			}
		}
		for i := range mask {
			if i%cols < cols-i/cols && i%cols >= from {
				sum, d[i] = sum-lp[i]/n, -1/n
			}
		}
		return written("sft", rows, cols, mask, map[string][]float64{"logp_new": lp, "loss": {sum}, "dlogp": d})
	}
	set := (&convention.Set{}).WithFact("num_items_in_batch", 22.0)
	for _, ch := range []string{"gradient/dlogp", "preference/sft_loss"} {
		requireFault(t, "LOSS-MASK-OTHER", ch, batch(0), set, batch(prompt))
	}
}
