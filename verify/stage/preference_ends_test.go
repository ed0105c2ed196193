package stage_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// answers draws the log-probs of the tokens of pairs and their sums; change is called for each token of the answers, first and last told.
func answers(seed uint64, change func(lp float64, first, last bool) float64) *trainer {
	const cols = 16
	tr := pairs(seed)
	b := tr.b
	r := rand.New(rand.NewPCG(seed, 11))
	loss := make([]float64, b.Rows)
	for _, of := range []struct{ tokens, mask, sum string }{
		{"chosen_token_logps", "chosen_mask", "logp_chosen"}, {"rejected_token_logps", "rejected_mask", "logp_rejected"},
		{"ref_chosen_token_logps", "chosen_mask", "ref_chosen"}, {"ref_rejected_token_logps", "rejected_mask", "ref_rejected"},
	} {
		x, mask := make([]float64, b.Rows*cols), make([]float64, b.Rows*cols)
		for row := range b.Rows {
			lo, hi := 3, 3+8+row%5
			var sum float64
			for t := lo; t < hi; t++ {
				i := row*cols + t
				mask[i] = 1
				x[i] = round32(change(round32(-0.1-3*r.ExpFloat64()), t == lo, t == hi-1))
				sum = round32(sum + x[i])
			}
			b.Row(of.sum)[row] = sum
		}
		b.Tensors[of.tokens] = &dump.Tensor{Name: of.tokens, Type: format.F32, Width: cols, Data: x}
		b.Tensors[of.mask] = &dump.Tensor{Name: of.mask, Type: format.Bool, Width: cols, Data: mask}
	}
	for row := range loss {
		loss[row] = round32(math.Exp(0.3 * r.NormFloat64()))
	}
	tr.perRow("pair_loss", func(i int) float64 { return loss[i] })
	return tr
}

func enough(tr *trainer) bool { return tr.b.Rows >= 6 }

func unless(on bool, lp float64) float64 {
	if on {
		return 0
	}
	return lp
}

func TestTokensOfAnswersThatWereNotSummed(t *testing.T) {
	judged := func(tr *trainer) *stage.Outcome {
		return stage.Judge(stage.Find("preference/tokens"), tr.b, &convention.Set{})
	}
	seen := 0
	for seed := range uint64(40) {
		tr := answers(seed, func(lp float64, _, _ bool) float64 { return lp })
		require.NotEqual(t, check.Fail, judged(tr).Verdict, "healthy")
		if !enough(tr) {
			continue
		}
		seen++
		require.Equal(t, check.Pass, judged(tr).Verdict)
		for what, change := range map[string]func(float64, bool, bool) float64{
			"no EOS":         func(lp float64, _, last bool) float64 { return unless(last, lp) },
			"no first token": func(lp float64, first, _ bool) float64 { return unless(first, lp) },
		} {
			o := judged(answers(seed, change))
			require.Equal(t, check.Fail, o.Verdict, what)
			require.Equal(t, "DPO-TOKENS", o.Rules.Violations[0].Fault, what)
		}
		r := rand.New(rand.NewPCG(seed, 3))
		for what, change := range map[string]func(float64, bool, bool) float64{
			"an EOS that is certain at most ends": func(lp float64, _, last bool) float64 {
				if last && r.Float64() < 0.3 {
					return -1e-6
				}
				return unless(last, lp)
			},
			"a model that is certain of other tokens as well": func(lp float64, _, last bool) float64 {
				if r.Float64() < 0.2 {
					return -1e-5
				}
				return unless(last, lp)
			},
		} {
			require.NotEqual(t, check.Fail, judged(answers(seed, change)).Verdict, what)
		}
	}
	require.Greater(t, seen, 3)
}

// One pass leaves the EOS of every answer out and the other one does not: no model is certain of them all that another one doubts.
func TestTokensOfAnswersThatOnePassLeavesOut(t *testing.T) {
	seen := 0
	for seed := range uint64(20) {
		for pass, want := range map[string]check.Verdict{"": check.Fail, "ref_": check.Fail, "chosen": check.Pass} {
			tr := answers(seed, func(lp float64, _, _ bool) float64 { return lp })
			if !enough(tr) {
				continue
			}
			seen++
			for _, answer := range []string{"chosen", "rejected"} {
				x, mask := tr.b.Tensors[pass+answer+"_token_logps"], tr.b.Tensors[answer+"_mask"]
				if pass == "chosen" { // one answer of the policy alone
					x = tr.b.Tensors["chosen_token_logps"]
				}
				sum := tr.b.Row(map[string]string{"": "logp_", "ref_": "ref_", "chosen": "logp_"}[pass] + answer)
				for i, m := range mask.Data {
					if m == 1 && ((i+1)%mask.Width == 0 || mask.Data[i+1] == 0) && x.Data[i] != 0 && (pass != "chosen" || answer == "chosen") {
						sum[i/mask.Width], x.Data[i] = sum[i/mask.Width]-x.Data[i], 0
					}
				}
			}
			require.Equal(t, want, stage.Judge(stage.Find("preference/tokens"), tr.b, &convention.Set{}).Verdict, pass)
		}
	}
	require.Greater(t, seen, 3)
}

func TestTokensOfAnswersRoundedBeforeTheirSum(t *testing.T) {
	half := func(lp float64, _, _ bool) float64 {
		return float64(math.Float32frombits(math.Float32bits(float32(lp)) &^ 0xffff))
	}
	judged := func(tr *trainer) *stage.Outcome {
		return stage.Judge(stage.Find("preference/tokens"), tr.b, &convention.Set{})
	}
	seen := 0
	for seed := range uint64(20) {
		tr := answers(seed, half)
		if !enough(tr) {
			continue
		}
		seen++
		o := judged(tr)
		require.Equal(t, check.Fail, o.Verdict)
		require.Equal(t, "LOGP-BF16", o.Rules.Violations[0].Fault)
		tr.b.Meta.ComputeDType = "bfloat16"
		require.NotEqual(t, check.Fail, judged(tr).Verdict, "declared")
		tr.b.Meta.ComputeDType = ""
		for i, v := range tr.b.Row("pair_loss") {
			tr.b.Row("pair_loss")[i] = half(v, false, false)
		}
		require.NotEqual(t, check.Fail, judged(tr).Verdict, "a model in bfloat16, whose hook made the sums")
	}
	require.Greater(t, seen, 3)
}

// Sums of one kind of answer beside means of the other are found whatever the options say.
func TestAnswersOfTwoForms(t *testing.T) {
	judged := func(means ...string) *stage.Outcome {
		tr := answers(5, func(lp float64, _, _ bool) float64 { return lp })
		for _, name := range means {
			x, mask := tr.b.Row(name), tr.b.Tensors["rejected_mask"]
			for r := range x {
				n := 0.0
				for _, m := range mask.Data[r*mask.Width : (r+1)*mask.Width] {
					n += m
				}
				x[r] = round32(x[r] / n)
			}
		}
		return stage.Judge(stage.Find("preference/tokens"), tr.b, &convention.Set{})
	}
	require.Equal(t, check.Pass, judged().Verdict)
	require.Equal(t, check.Pass, judged("logp_chosen", "logp_rejected", "ref_chosen", "ref_rejected").Verdict)
	o := judged("logp_rejected", "ref_rejected")
	require.Equal(t, check.Fail, o.Verdict)
	require.Equal(t, "DPO-TOKENS", o.Rules.Violations[0].Fault)
}
