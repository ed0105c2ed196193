package stage_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/stage"
)

// The cross-entropy beside a preference loss is that of the chosen answers, over their tokens, their number or both; a form that nobody has is
// named, and one that the log-probs say nothing of is not judged.
func TestCrossEntropyBesideAPreferenceLoss(t *testing.T) {
	for _, c := range []struct {
		name, fault string
		of          func(chosen, rejected, tokens, others []float64) float64
	}{
		{"the tokens of the batch", "", func(c, _, n, _ []float64) float64 { return -total(c) / total(n) }},
		{"answers", "", func(c, _, n, _ []float64) float64 { return -total(c) / float64(len(c)) }},
		{"means of answers", "", func(c, _, n, _ []float64) (s float64) {
			for i := range c {
				s -= c[i] / n[i] / float64(len(c))
			}
			return s
		}},
		{"rejected", "DPO-NLL", func(_, r, _, m []float64) float64 { return -total(r) / total(m) }},
		{"both", "DPO-NLL", func(c, r, n, m []float64) float64 { return -(total(c) + total(r)) / (total(n) + total(m)) }},
		{"no minus", "DPO-NLL", func(c, _, n, _ []float64) float64 { return total(c) / total(n) }},
		{"one token less", "DPO-NLL", func(c, _, n, _ []float64) float64 { return -total(c) / (total(n) - float64(len(n))) }},
		{"tokens of the others", "DPO-NLL", func(c, _, _, m []float64) float64 { return -total(c) / total(m) }},
		{"twice", "DPO-NLL-LENGTH-TWICE", func(c, _, n, _ []float64) float64 { return -total(c) / total(n) / float64(len(n)) }},
		{"of prompts, too", "skip", func(c, _, n, _ []float64) float64 { return 1.7 - total(c)/total(n) }},
	} {
		tr := pairs(3)
		b := tr.b
		n := tr.perRow("chosen_tokens", func(int) float64 { return float64(8 + tr.r.IntN(9)) })
		m := tr.perRow("rejected_tokens", func(int) float64 { return float64(8 + tr.r.IntN(9)) })
		nll := make([]float64, len(b.Files))
		for f, file := range b.Files {
			at := func(x []float64) []float64 { return x[file.Lo:file.Hi] }
			nll[f] = round32(c.of(at(b.Row("logp_chosen")), at(b.Row("logp_rejected")), at(n), at(m)))
		}
		tr.perFile("nll_loss", nll)
		o := stage.Judge(stage.Find("preference/nll_loss"), b, options(t, "dpo.loss=sigmoid"))
		switch c.fault {
		case "":
			require.Equal(t, check.Pass, o.Verdict, c.name)
		case "skip":
			require.Equal(t, check.Skip, o.Verdict, c.name)
		default:
			require.Equal(t, check.Fail, o.Verdict, c.name)
			require.Equal(t, c.fault, o.Rules.Violations[0].Fault, c.name)
		}
	}
}

// Of tokens that were dumped with prompts and padding, the mean over all columns is no cross-entropy of the answers.
func TestCrossEntropyOfPadding(t *testing.T) {
	tr := pairs(4)
	b := tr.b
	const cols = 12
	tokens, mask := make([]float64, b.Rows*cols), make([]float64, b.Rows*cols)
	for i := range tokens {
		tokens[i] = round32(-3 * tr.r.Float64())
		if i%cols > 2 && i%cols < 6+i/cols%5 {
			mask[i] = 1
		}
	}
	nll := make([]float64, len(b.Files))
	for f, file := range b.Files {
		nll[f] = round32(-total(tokens[file.Lo*cols:file.Hi*cols]) / float64((file.Hi-file.Lo)*cols))
	}
	tr.perFile("nll_loss", nll)
	for name, x := range map[string][]float64{"chosen_token_logps": tokens, "chosen_mask": mask} {
		b.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerRow, Width: cols, Shape: []int{b.Rows, cols}, Data: x, Type: format.F32}
	}
	o := stage.Judge(stage.Find("preference/nll_loss"), b, options(t, "dpo.loss=sigmoid"))
	require.Equal(t, check.Fail, o.Verdict)
	require.Equal(t, "DPO-NLL", o.Rules.Violations[0].Fault)
}

func total(x []float64) (s float64) {
	for _, v := range x {
		s += v
	}
	return s
}
