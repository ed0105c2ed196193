package stage_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/verify/check"
	"plumbline/verify/stage"
	"plumbline/verify/tol"
)

// rowStep is a step of GSPO whose log-probs are bfloat16 and whose advantages are float32, one per row. The sum of a row is bfloat16. Its length is an
// integer, so that mean and ratio are bfloat16, too, or it is float32. cells is what the sum is divided by.
func rowStep(tr *trainer, narrow bool, cells func(row []bool) float64) {
	put := func(name string, draw func(i int) float64) []float64 {
		x := tr.grid(name, func(i int) float64 { return bf(draw(i)) })
		tr.b.Tensors[name].Type = format.BF16
		return x
	}
	cols := tr.b.Cols
	old := put("logp_old", func(int) float64 { return -tr.r.ExpFloat64() })
	lp := put("logp_new", func(i int) float64 { return min(0, old[i]+0.2*tr.r.NormFloat64()) })
	adv := tr.grid("advantages", func(i int) float64 { return float64(1 + i/cols%3) })
	tr.grid("token_loss", func(i int) float64 {
		lo := i / cols * cols
		var sum float32
		for k := lo; k < lo+cols; k++ {
			if tr.b.Mask[k] {
				sum += float32(bf(lp[k] - old[k]))
			}
		}
		n := cells(tr.b.Mask[lo : lo+cols])
		rho := float64(float32(math.Exp(float64(float32(bf(float64(sum))) / float32(n)))))
		if narrow {
			rho = bf(math.Exp(bf(bf(float64(sum)) / n)))
		}
		return float64(-float32(rho) * float32(adv[i]))
	})
	tr.b.Meta.TokenLossIncludesKL = new(bool)
}

// A ratio of a row in bfloat16 is judged as it was computed, by verl and OpenRLHF in bfloat16 and by TRL in float32, and a length that is
// another one is a finding in both.
func TestRatioOfARowInSixteenBits(t *testing.T) {
	tokens := func(row []bool) (n float64) {
		for _, m := range row {
			if m {
				n++
			}
		}
		return max(n, 1)
	}
	width := func(row []bool) float64 { return float64(len(row)) + 3 }
	for _, framework := range []string{"openrlhf", "verl", "trl", ""} {
		for _, narrow := range []bool{false, true} {
			tr := newTrainer(3)
			tr.b.Meta.Framework = framework
			set := options(t, "loss.kind=gspo", "ratio.level=seq_mean", "ratio.log_clamp=none", "ratio.seq_log_max=none", "ratio.len_eps=0", "ratio.grad=row", "ratio.old=stored",
				"clip.low=none", "clip.high=none", "clip.dual=none", "clip.delta=none", "kl.place=none", "tis.level=none")
			rowStep(tr, narrow, tokens)
			o := stage.JudgeAs(stage.Find("token_loss/policy"), tr.b, set, stage.Arithmetic{Unit: tol.U32, Promoted: true})
			require.Equal(t, check.Pass, o.Verdict, "%s %v: %v", framework, narrow, o.Tally.Worst)
			rowStep(tr, narrow, width)
			require.Equal(t, check.Fail, stage.JudgeAs(stage.Find("token_loss/policy"), tr.b, set, stage.Arithmetic{Unit: tol.U32, Promoted: true}).Verdict, "%s %v", framework, narrow)
		}
	}
}

// A KL term may have the ratio of a row where the policy term has none: the slope of that term is no part of the ratio's.
func TestRatioOfARowInTheKLTermAlone(t *testing.T) {
	tr := newTrainer(3)
	tr.b.Meta.Framework = "verl"
	rowStep(tr, true, func(row []bool) float64 { return float64(len(row)) })
	for name, draw := range map[string]func(i int) float64{
		"logp_ref": func(i int) float64 { return bf(tr.b.Token("logp_new")[i] + 0.1*tr.r.NormFloat64()) },
		"dlogp":    func(int) float64 { return 0 },
	} {
		tr.grid(name, draw)
		tr.b.Tensors[name].Type = format.BF16
	}
	set := options(t, "loss.kind=reinforce", "ratio.level=seq_mean", "ratio.log_clamp=none", "ratio.seq_log_max=none", "ratio.len_eps=0", "ratio.grad=row", "ratio.old=stored",
		"kl.place=loss", "kl.beta=0.1", "kl.kind=k3", "kl.grad=is_corrected", "kl.clamp_in=none", "kl.clamp_out=none", "kl.is_cap=none", "kl.agg=same", "tis.level=none")
	set = reduction{kind: "token", where: "global"}.set(t, set)
	gradient, mixed := stage.Find("gradient/dlogp"), stage.Arithmetic{Unit: tol.U32, Promoted: true}
	o := stage.JudgeAs(gradient, tr.b, set, mixed)
	require.NotNil(t, o.Tally, "lacks %s", o.Lacking())
	require.Equal(t, check.Fail, o.Verdict, "no gradient at all")
	right := make([]float64, len(o.Pred.Want))
	for i, x := range o.Pred.Want {
		right[i] = bf(x)
	}
	require.NotEqual(t, check.Fail, stage.JudgeAs(gradient, tr.b.With("dlogp", right), set, mixed).Verdict)
}
