package dump_test

import (
	"context"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/cases"
	"plumbline/internal/format"
	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/dump"
)

// edit is a bug as somebody would make it by hand: an output of a run of a real framework that is computed again, wrongly.
type edit struct {
	name, dir, profile string
	change             func(b *dumpfile.Batch)
	check, fault       string // that must be found first in this check
	says               string // part of its title
}

const (
	trlGRPO  = "testdata/trl/clean/grpo"
	trlDAPO  = "testdata/trl/clean/dapo"
	verlPPO  = "../../golden/dumps/verl/clean/ppo"
	verlGRPO = "../../golden/dumps/verl/clean/grpo"
	verlTIS  = "../../golden/dumps/verl/clean/grpo_tis"
)

// cells calls f for every cell of the mask.
func cells(b *dumpfile.Batch, f func(i, row, col int)) {
	for i, m := range b.Mask {
		if m {
			f(i, i/b.Cols, i%b.Cols)
		}
	}
}

func lengths(b *dumpfile.Batch) []float64 {
	n := make([]float64, b.Rows)
	cells(b, func(_, row, _ int) { n[row]++ })
	return n
}

// ends returns the first and the last token of every row.
func ends(b *dumpfile.Batch) (first, last []int) {
	first, last = make([]int, b.Rows), make([]int, b.Rows)
	for r := range first {
		first[r] = -1
	}
	cells(b, func(_, row, col int) {
		if first[row] < 0 {
			first[row] = col
		}
		last[row] = col
	})
	return first, last
}

// policyTerm writes the token losses of TRL with another policy term.
func policyTerm(b *dumpfile.Batch, of func(r, a float64) float64) {
	lp, old, adv, kl, loss := b.Token("logp_new"), b.Token("logp_old"), b.Row("advantages"), b.Token("kl"), b.Token("token_loss")
	cells(b, func(i, row, _ int) { loss[i] = single(of(math.Exp(lp[i]-old[i]), adv[row]) + 0.04*kl[i]) })
}

// single rounds to float32, in which these runs were computed.
func single(x float64) float64 { return float64(float32(x)) }

// estimates writes TRL's estimates of KL, corrected by the ratio, by another formula of x = logp_ref − logp_new.
func estimates(b *dumpfile.Batch, of func(x float64) float64) {
	lp, old, ref, kl := b.Token("logp_new"), b.Token("logp_old"), b.Token("logp_ref"), b.Token("kl")
	cells(b, func(i, _, _ int) { kl[i] = single(of(ref[i]-lp[i]) * math.Exp(lp[i]-old[i])) })
}

// klOf writes verl's estimates of KL from the policy's log-probs of other cells.
func klOf(b *dumpfile.Batch, from func(row, col int) (int, int)) {
	lp, ref, kl := b.Token("logp_new"), b.Token("logp_ref"), b.Token("kl")
	cells(b, func(i, row, col int) {
		r, c := from(row, col)
		x := min(max(ref[i]-lp[r*b.Cols+c], -20), 20)
		kl[i] = single(min(max(math.Expm1(x)-x, -10), 10))
	})
}

// losses writes the loss of every file: the sum over its rows of what of gives.
func losses(b *dumpfile.Batch, of func(row int) float64) {
	for f, info := range b.Files {
		var sum float64
		for r := info.Lo; r < info.Hi; r++ {
			sum += of(r)
		}
		b.PerFile("loss")[f] = single(sum)
	}
}

// rowSum returns the sum of the token losses of a row, of those that are taken.
func rowSum(b *dumpfile.Batch, row int, take func(col int) bool) (sum float64) {
	loss := b.Token("token_loss")
	for col := range b.Cols {
		if take(col) {
			sum += loss[row*b.Cols+col]
		}
	}
	return sum
}

func marked(b *dumpfile.Batch, row int) func(col int) bool {
	return func(col int) bool { return b.Mask[row*b.Cols+col] }
}

// rewards writes the rewards of the tokens of a row of verl's PPO from its score and the penalties of its tokens.
func rewards(b *dumpfile.Batch, of func(score float64, kl []float64, first, last, n, col int) float64) {
	score, kl, out := b.Row("scores"), b.Token("kl"), b.Token("token_rewards")
	first, last := ends(b)
	n := lengths(b)
	cells(b, func(i, row, col int) {
		penalties := make([]float64, b.Cols)
		for t := range penalties {
			if b.Mask[row*b.Cols+t] {
				penalties[t] = -0.05 * kl[row*b.Cols+t]
			}
		}
		out[i] = single(of(score[row], penalties, first[row], last[row], int(n[row]), col))
	})
}

// logged overwrites a logged number of every file.
func logged(b *dumpfile.Batch, name string, of func(lo, hi int) float64) {
	for f, info := range b.Files {
		b.Files[f].Scalars = slices.Clone(info.Scalars)
		for i := range info.Scalars {
			if s := &b.Files[f].Scalars[i]; s.Name == name {
				s.Value = of(info.Lo, info.Hi)
			}
		}
	}
}

// meanOf returns the mean over the tokens of some rows.
func meanOf(b *dumpfile.Batch, lo, hi int, of func(i int) float64) float64 {
	var sum, n float64
	cells(b, func(i, row, _ int) {
		if row >= lo && row < hi {
			sum += of(i)
			n++
		}
	})
	return sum / n
}

func times(name string, k float64) func(b *dumpfile.Batch) {
	return func(b *dumpfile.Batch) {
		for i := range b.Tensors[name].Data {
			b.Tensors[name].Data[i] *= k
		}
	}
}

// returns writes the returns of another recursion.
func returns(b *dumpfile.Batch, value, trace float64) {
	r, v, out := b.Token("token_rewards"), b.Token("values"), b.Token("returns")
	for row := range b.Rows {
		var next, sum float64
		for col := b.Cols - 1; col >= 0; col-- {
			if i := row*b.Cols + col; b.Mask[i] {
				sum = r[i] + value*next - v[i] + trace*sum
				next = v[i]
				out[i] = single(sum + v[i])
			}
		}
	}
}

var edits = []edit{
	{"a loss of nothing", trlGRPO, "trl-grpo@1.16", func(b *dumpfile.Batch) { losses(b, func(int) float64 { return 0 }) }, "aggregate/loss", "AGG-ZERO", ""},
	{"KL of the row before", verlGRPO, "verl-grpo@0.9", func(b *dumpfile.Batch) { klOf(b, func(row, col int) (int, int) { return row/4*4 + (row+3)%4, col }) }, "kl/token", "KL-POLICY-ROWS", ""},
	{"KL of the token before", verlGRPO, "verl-grpo@0.9", func(b *dumpfile.Batch) { klOf(b, func(row, col int) (int, int) { return row, (col + 13) % 14 }) }, "kl/token", "KL-POLICY-SHIFT", ""},
	{"half the gradient of a loss that is right", trlGRPO, "trl-grpo@1.16", times("dlogp", 0.5), "gradient/dlogp", "FACTOR", "0.5"},
	{"the loss scale", trlGRPO, "trl-grpo@1.16", times("dlogp", 65536), "gradient/dlogp", "FACTOR", "2^16"},
	{"a factor of nothing", trlGRPO, "trl-grpo@1.16", times("dlogp", 0.37), "gradient/dlogp", "FACTOR", "0.37"},
	{"a bonus for entropy", trlGRPO, "trl-grpo@1.16", func(b *dumpfile.Batch) {
		e, loss := b.Token("entropy"), b.Token("token_loss")
		cells(b, func(i, _, _ int) { loss[i] = single(loss[i] - 0.01*e[i]) })
	}, "token_loss/policy", "EXTRA-TERM", "-0.01 × entropy"},
	{"advantages of other rows", trlGRPO, "trl-grpo@1.16", func(b *dumpfile.Batch) { a := b.Row("advantages"); slices.Reverse(a) }, "advantage/group", "ADV-ROWS-PERMUTED", ""},
	{"advantages that are bounded", trlGRPO, "trl-grpo@1.16", func(b *dumpfile.Batch) {
		for i, a := range b.Row("advantages") {
			b.Row("advantages")[i] = min(max(a, -1), 1)
		}
	}, "advantage/group", "ADV-CLIPPED", ""},
	{"gradients of other rows", trlGRPO, "trl-grpo@1.16", func(b *dumpfile.Batch) {
		d := b.Token("dlogp")
		for _, f := range b.Files {
			rows := slices.Clone(d[f.Lo*b.Cols : f.Hi*b.Cols])
			copy(d[(f.Lo+1)*b.Cols:f.Hi*b.Cols], rows)
			copy(d[f.Lo*b.Cols:(f.Lo+1)*b.Cols], rows[len(rows)-b.Cols:])
		}
	}, "gradient/dlogp", "GRAD-ROWS-PERMUTED", ""},
	{"gradients that are bounded", trlGRPO, "trl-grpo@1.16", func(b *dumpfile.Batch) {
		for i, d := range b.Token("dlogp") {
			b.Token("dlogp")[i] = single(min(max(d, -2e-3), 2e-3))
		}
	}, "gradient/dlogp", "GRAD-CUT-OFF", ""},
	{"old log-probs in 16 bits", trlGRPO, "trl-grpo@1.16", func(b *dumpfile.Batch) {
		old := slices.Clone(b.Token("logp_old"))
		for i, x := range old {
			b.Token("logp_old")[i] = format.Round(x, format.BF16)
		}
		estimates(b, func(x float64) float64 { return math.Expm1(x) - x })
		copy(b.Token("logp_old"), old)
	}, "kl/token", "OLD-BF16", ""},
	{"the mean of the other group", trlGRPO, "trl-grpo@1.16", func(b *dumpfile.Batch) {
		score, id, a := b.Row("scores"), b.Row("group_id"), b.Row("advantages")
		for r := range a {
			var n, mean, square, others, other float64
			for q := range a {
				if id[q] == id[r] {
					n, mean = n+1, mean+score[q]
				} else {
					others, other = others+1, other+score[q]
				}
			}
			for q := range a {
				if id[q] == id[r] {
					square += (score[q] - mean/n) * (score[q] - mean/n)
				}
			}
			a[r] = single((score[r] - other/others) / (math.Sqrt(square/(n-1)) + 1e-4))
		}
	}, "advantage/group", "ADV-OTHER-GROUP", ""},
	{"one reward function", trlGRPO, "trl-grpo@1.16", func(b *dumpfile.Batch) {
		all, id, a := b.Tensors["rewards_per_func"], b.Row("group_id"), b.Row("advantages")
		of := func(r int) float64 { return all.Data[r*all.Width] }
		for r := range a {
			var n, mean, square float64
			for q := range a {
				if id[q] == id[r] {
					n, mean = n+1, mean+of(q)
				}
			}
			for q := range a {
				if id[q] == id[r] {
					square += (of(q) - mean/n) * (of(q) - mean/n)
				}
			}
			a[r] = single((of(r) - mean/n) / (math.Sqrt(square/(n-1)) + 1e-4))
		}
	}, "advantage/group", "REWARD-ONE-FUNCTION", ""},
	{"another ε", trlGRPO, "trl-grpo@1.16", func(b *dumpfile.Batch) {
		score, id, a := b.Row("scores"), b.Row("group_id"), b.Row("advantages")
		for r := range a {
			var n, mean, square float64
			for q := range a {
				if id[q] == id[r] {
					n, mean = n+1, mean+score[q]
				}
			}
			mean /= n
			for q := range a {
				if id[q] == id[r] {
					square += (score[q] - mean) * (score[q] - mean)
				}
			}
			a[r] = single((score[r] - mean) / (math.Sqrt(square/(n-1)) + 0.01))
		}
	}, "advantage/group", "ADV-EPS", "adv.eps 0.01"},
	{"other bounds", trlGRPO, "trl-grpo@1.16", func(b *dumpfile.Batch) {
		policyTerm(b, func(r, a float64) float64 { return -min(r*a, min(max(r, 0.9), 1.15)*a) })
	}, "token_loss/policy", "CLIP-BOUND", "at least 0.9, where 0.8 is declared; at most 1.15"},
	{"half of the bounds", trlGRPO, "trl-grpo@1.16", func(b *dumpfile.Batch) {
		policyTerm(b, func(r, a float64) float64 { return -min(r*a, min(max(r, 0.9), 1.14)*a) })
	}, "token_loss/policy", "CLIP-BOUND", "1 − clip.low/2 and 1 + clip.high/2"},
	{"no min", trlGRPO, "trl-grpo@1.16", func(b *dumpfile.Batch) {
		policyTerm(b, func(r, a float64) float64 { return -min(max(r, 0.8), 1.28) * a })
	}, "token_loss/policy", "CLIP-WITHOUT-MIN", ""},
	{"max for negative advantages", trlGRPO, "trl-grpo@1.16", func(b *dumpfile.Batch) {
		policyTerm(b, func(r, a float64) float64 {
			c := min(max(r, 0.8), 1.28)
			if a < 0 {
				return -max(r*a, c*a)
			}
			return -min(r*a, c*a)
		})
	}, "token_loss/policy", "CLIP-WRONG-SIDE", ""},
	{"no loss outside", trlGRPO, "trl-grpo@1.16", func(b *dumpfile.Batch) {
		policyTerm(b, func(r, a float64) float64 {
			if r < 0.8 || r > 1.28 {
				return 0
			}
			return -r * a
		})
	}, "token_loss/policy", "CLIP-DROPS", ""},
	{"the bounds of the log-ratio", trlGRPO, "trl-grpo@1.16", func(b *dumpfile.Batch) {
		policyTerm(b, func(r, a float64) float64 { return -min(r*a, min(max(r, math.Exp(-0.2)), math.Exp(0.28))*a) })
	}, "token_loss/policy", "CLIP-LOG-RATIO", ""},
	{"the size of the advantage", trlGRPO, "trl-grpo@1.16", func(b *dumpfile.Batch) {
		policyTerm(b, func(r, a float64) float64 {
			a = math.Abs(a)
			return -min(r*a, min(max(r, 0.8), 1.28)*a)
		})
	}, "token_loss/policy", "ADV-ABSOLUTE", ""},
	{"k3 without −1", trlGRPO, "trl-grpo@1.16", func(b *dumpfile.Batch) { estimates(b, func(x float64) float64 { return math.Exp(x) - x }) }, "kl/token", "KL-FORMULA", "without the −1"},
	{"k2 without ½", trlGRPO, "trl-grpo@1.16", func(b *dumpfile.Batch) { estimates(b, func(x float64) float64 { return x * x }) }, "kl/token", "KL-FORMULA", "without the ½"},
	{"EOS not summed", trlDAPO, "trl-grpo@1.16", func(b *dumpfile.Batch) {
		_, last := ends(b)
		items := sum(lengths(b))
		losses(b, func(row int) float64 {
			in := marked(b, row)
			return rowSum(b, row, func(col int) bool { return in(col) && col != last[row] }) / items
		})
	}, "aggregate/loss", "LOSS-MASK-NO-EOS-ABOVE", ""},
	{"one token too many", trlDAPO, "trl-grpo@1.16", func(b *dumpfile.Batch) {
		_, last := ends(b)
		items := sum(lengths(b))
		losses(b, func(row int) float64 {
			in := marked(b, row)
			return rowSum(b, row, func(col int) bool { return in(col) || col == last[row]+1 }) / items
		})
	}, "aggregate/loss", "LOSS-MASK-P1-ABOVE", ""},
	{"the first token is not summed", trlGRPO, "trl-grpo@1.16", func(b *dumpfile.Batch) {
		first, _ := ends(b)
		n := lengths(b)
		losses(b, func(row int) float64 {
			in := marked(b, row)
			return rowSum(b, row, func(col int) bool { return in(col) && col != first[row] }) / n[row] / 8
		})
	}, "aggregate/loss", "LOSS-MASK-FIRST", "and counted"},
	{"lengths of one too many", trlGRPO, "trl-grpo@1.16", func(b *dumpfile.Batch) {
		n := lengths(b)
		losses(b, func(row int) float64 { return rowSum(b, row, marked(b, row)) / (n[row] + 1) / 8 })
	}, "aggregate/loss", "AGG-LENGTH-OFF-BY-ONE", "too many"},
	{"prompts are counted", trlGRPO, "trl-grpo@1.16", func(b *dumpfile.Batch) {
		n := lengths(b)
		losses(b, func(row int) float64 { return rowSum(b, row, marked(b, row)) / (n[row] + b.Row("prompt_len")[row]) / 8 })
	}, "aggregate/loss", "AGG-PROMPT-COUNTED", ""},
	{"λ of the returns", verlPPO, "verl-ppo@0.9", func(b *dumpfile.Batch) { returns(b, 0.99, 0.99*0.7) }, "gae/returns", "", "gae.lambda 0.7"},
	{"no γ", verlPPO, "verl-ppo@0.9", func(b *dumpfile.Batch) { returns(b, 1, 0.95) }, "gae/returns", "GAE-NO-GAMMA", "γ is missing"}, // the advantages have it
	{"no γ behind δ", verlPPO, "verl-ppo@0.9", func(b *dumpfile.Batch) { returns(b, 0.99, 0.95) }, "gae/returns", "GAE-NO-GAMMA", "γ is missing behind it"},
	{"no γ in δ", verlPPO, "verl-ppo@0.9", func(b *dumpfile.Batch) { returns(b, 1, 0.99*0.95) }, "gae/returns", "GAE-NO-GAMMA", "before the next value"},
	{"γ and λ exchanged", verlPPO, "verl-ppo@0.9", func(b *dumpfile.Batch) { returns(b, 0.95, 0.99*0.95) }, "gae/returns", "GAE-GAMMA-LAMBDA-EXCHANGED", ""},
	{"γ² behind δ", verlPPO, "verl-ppo@0.9", func(b *dumpfile.Batch) { returns(b, 0.99, 0.99*0.99*0.95) }, "gae/returns", "GAE-RECURSION", "γ²λ"},
	{"returns of rewards", verlPPO, "verl-ppo@0.9", func(b *dumpfile.Batch) {
		returns(b, 0.99, 0.99*0.95)
		v, r, ret := b.Token("values"), b.Token("token_rewards"), b.Token("returns")
		cells(b, func(i, _, _ int) { ret[i] = single(ret[i] - v[i] + r[i]) })
	}, "gae/returns", "OTHER-FORM", "the rewards are added"},
	{"γ is missing behind δ", verlPPO, "verl-ppo@0.9", func(b *dumpfile.Batch) { returns(b, 0, 0.99*0.95) }, "gae/returns", "GAE-RECURSION", "the next value is missing"},
	{"the score twice", verlPPO, "verl-ppo@0.9", func(b *dumpfile.Batch) {
		rewards(b, func(score float64, kl []float64, first, last, n, col int) float64 {
			if col == last {
				return 2*score + kl[col]
			}
			return kl[col]
		})
	}, "reward/token", "SCORE-TWICE", ""},
	{"the score in shares", verlPPO, "verl-ppo@0.9", func(b *dumpfile.Batch) {
		rewards(b, func(score float64, kl []float64, first, last, n, col int) float64 { return score/float64(n) + kl[col] })
	}, "reward/token", "REWARD-PLACE", "in equal shares"},
	{"no KL under the score", verlPPO, "verl-ppo@0.9", func(b *dumpfile.Batch) {
		rewards(b, func(score float64, kl []float64, first, last, n, col int) float64 {
			if col == last {
				return score
			}
			return kl[col]
		})
	}, "reward/token", "REWARD-PLACE", "is missing"},
	{"the KL of the new policy", verlPPO, "verl-ppo@0.9", func(b *dumpfile.Batch) {
		lp, ref, kl := b.Token("logp_new"), b.Token("logp_ref"), b.Token("kl")
		cells(b, func(i, _, _ int) { kl[i] = single(lp[i] - ref[i]) })
		rewards(b, func(score float64, kl []float64, _, last, _, col int) float64 {
			if col == last {
				return score + kl[col]
			}
			return kl[col]
		})
	}, "kl/token", "KL-OF-NEW", ""},
	{"targets of whitened advantages", verlPPO, "verl-ppo@0.9", func(b *dumpfile.Batch) {
		v, old, a := b.Token("values_new"), b.Token("values"), b.Token("advantages")
		n := sum(lengths(b))
		for f, info := range b.Files {
			b.PerFile("value_loss")[f] = 0
			cells(b, func(i, row, _ int) {
				if r := a[i] + old[i]; row >= info.Lo && row < info.Hi {
					c := old[i] + min(max(v[i]-old[i], -0.1), 0.1)
					b.PerFile("value_loss")[f] += 0.5 * max((v[i]-r)*(v[i]-r), (c-r)*(c-r)) / n
				}
			})
		}
	}, "aggregate/value_loss", "VALUE-TARGET", "whitened"},
	{"targets of single tokens", verlPPO, "verl-ppo@0.9", func(b *dumpfile.Batch) {
		v, old, r := b.Token("values_new"), b.Token("values"), b.Token("token_rewards")
		n := sum(lengths(b))
		for f, info := range b.Files {
			b.PerFile("value_loss")[f] = 0
			cells(b, func(i, row, _ int) {
				if row >= info.Lo && row < info.Hi {
					c := old[i] + min(max(v[i]-old[i], -0.1), 0.1)
					b.PerFile("value_loss")[f] += 0.5 * max((v[i]-r[i])*(v[i]-r[i]), (c-r[i])*(c-r[i])) / n
				}
			})
		}
	}, "aggregate/value_loss", "VALUE-TARGET", "of single tokens"},
	{"weights of at most 1", verlTIS, "verl-grpo@0.9", func(b *dumpfile.Batch) {
		for i, w := range b.Token("is_weights") {
			b.Token("is_weights")[i] = min(w, 1)
		}
	}, "ratio/is_weights", "IS-CLAMP-MISSING", "tis.high 1 "},
	{"weights of mean 1", verlTIS, "verl-grpo@0.9", func(b *dumpfile.Batch) {
		w := b.Token("is_weights")
		for _, f := range b.Files {
			mean := meanOf(b, f.Lo, f.Hi, func(i int) float64 { return w[i] })
			for i := f.Lo * b.Cols; i < f.Hi*b.Cols; i++ {
				w[i] = single(w[i] / mean)
			}
		}
	}, "ratio/is_weights", "IS-NORMALISED", ""},
	{"k3 under the name of ppo_kl", verlGRPO, "verl-grpo@0.9", func(b *dumpfile.Batch) {
		lp, old := b.Token("logp_new"), b.Token("logp_old")
		logged(b, "ppo_kl", func(lo, hi int) float64 {
			return meanOf(b, lo, hi, func(i int) float64 { return math.Expm1(lp[i]-old[i]) - (lp[i] - old[i]) })
		})
	}, "scalars/ppo_kl", "METRIC-UPDATE-KL", "ρ − 1 − log ρ"},
	{"means of means", verlGRPO, "verl-grpo@0.9", func(b *dumpfile.Batch) {
		e, n := b.Token("entropy"), lengths(b)
		logged(b, "entropy", func(lo, hi int) (mean float64) {
			for r := lo; r < hi; r++ {
				cells(b, func(i, row, _ int) {
					if row == r {
						mean += e[i] / n[r] / float64(hi-lo)
					}
				})
			}
			return mean
		})
	}, "scalars/entropy", "METRIC-ROW-MEANS", ""},
	{"log-probs under the name of entropy", verlGRPO, "verl-grpo@0.9", func(b *dumpfile.Batch) {
		lp := b.Token("logp_new")
		logged(b, "entropy", func(lo, hi int) float64 { return meanOf(b, lo, hi, func(i int) float64 { return lp[i] }) })
	}, "scalars/entropy", "METRIC-OF-OTHER", "the mean of logp_new over the tokens"},
	{"one side of the clip fraction", verlGRPO, "verl-grpo@0.9", func(b *dumpfile.Batch) {
		lp, old, a := b.Token("logp_new"), b.Token("logp_old"), b.Token("advantages")
		logged(b, "clip_frac", func(lo, hi int) float64 {
			return meanOf(b, lo, hi, func(i int) float64 {
				if a[i] > 0 && math.Exp(lp[i]-old[i]) > 1.28 {
					return 1
				}
				return 0
			})
		})
	}, "scalars/clip_frac", "METRIC-CLIP-FRACTION", "as if clip.low none"},
}

func sum(x []float64) (s float64) {
	for _, v := range x {
		s += v
	}
	return s
}

// TestEditsAreNamed plants every edit in all steps of its run: it is found in its check, and named there first.
func TestEditsAreNamed(t *testing.T) {
	for i, e := range edits {
		if i%cases.Every != 0 {
			continue
		}
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			run, err := dumpfile.Open(context.Background(), []string{e.dir})
			require.NoError(t, err)
			var steps dump.Batches
			for _, step := range run.Steps() {
				b, err := run.Batch(context.Background(), step)
				require.NoError(t, err)
				e.change(b)
				steps = append(steps, b)
			}
			r, err := dump.Judge(context.Background(), steps, dump.Options{Profile: e.profile})
			require.NoError(t, err)
			at := slices.IndexFunc(r.Results, func(r check.Result) bool { return r.Check == e.check })
			require.GreaterOrEqual(t, at, 0)
			res := r.Results[at]
			require.Contains(t, []check.Verdict{check.Fail, check.Convention}, res.Verdict, res.Reason)
			require.NotEmpty(t, res.Explanations, res.Reason)
			first := res.Explanations[0]
			require.Equal(t, e.name == "a factor of nothing", first.Lead, "one fitted number is a pattern, and no bug")
			require.Equal(t, e.fault, first.Fault, first.Title)
			require.Contains(t, first.Title, e.says)
			if strings.HasPrefix(first.Title, "as if") || e.fault == "FACTOR" {
				require.Equal(t, check.Fail, res.Verdict, "what another check contradicts is no convention")
			}
		})
	}
}
