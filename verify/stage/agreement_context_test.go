package stage

import (
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
)

// causal is a batch of a model whose logits are drawn from a hash of the prompt and the tokens before, by rows that are off by noise.
type causal struct {
	grid
	column func(name string, late int) []float64 // a tensor whose columns are late by some
}

const causalCols = 12

// newCausal draws 16 prompts of 4 rows. sharp makes tokens certain, so that rows have long beginnings in common.
func newCausal(seed uint64, sharp, noise float64) causal {
	const prompts, group, vocab = 16, 4, 12
	r := rand.New(rand.NewPCG(69, seed))
	lengths := slices.Repeat([]int{causalCols}, prompts*group)
	g := newGrid(causalCols, lengths...)
	rows := len(lengths)
	distribution := func(prompt int, ids []int) (z []float64, value float64) {
		h := fnv.New64a()
		fmt.Fprint(h, seed, prompt, ids)
		d := rand.New(rand.NewPCG(h.Sum64(), 1))
		z = make([]float64, vocab)
		for v := range z {
			z[v] = sharp * d.NormFloat64()
		}
		return z, d.NormFloat64()
	}
	ids := make([][]int, rows)
	for i := range ids {
		for range causalCols + 2 {
			z, _ := distribution(i/group, ids[i])
			_, id := pick(r, z)
			ids[i] = append(ids[i], id)
		}
	}
	column := func(name string, late int) []float64 {
		var x []float64
		for i, row := range ids {
			for t := range causalCols {
				z, value := distribution(i/group, row[:t+late])
				for v := range z {
					z[v] += noise * r.NormFloat64()
				}
				lse := logSumExp(z)
				switch name {
				case "entropy":
					h := lse
					for _, v := range z {
						h -= math.Exp(v-lse) * v
					}
					x = append(x, h)
				case "values":
					x = append(x, value+0.05*noise*r.NormFloat64())
				default:
					x = append(x, z[row[t+late]]-lse)
				}
			}
		}
		return x
	}
	var response, input, attention, id []float64
	for i, row := range ids {
		input, attention, id = append(input, 100+float64(i/group)), append(attention, 1), append(id, float64(i/group))
		for t := range causalCols {
			response, input, attention = append(response, float64(row[t])), append(input, float64(row[t])), append(attention, 1)
		}
	}
	g.Files[0].PromptCols = 1
	g = g.token("response_ids", response...).row("input_ids", input...).row("attention_mask", attention...).row("group_id", id...)
	for _, name := range []string{"response_ids", "input_ids", "group_id"} {
		g.Tensors[name].Type = format.I64
	}
	for _, name := range []string{"logp_new", "logp_old", "entropy", "values"} {
		g = g.token(name, column(name, 0)...)
	}
	return causal{g, column}
}

func logSumExp(z []float64) float64 {
	var sum float64
	for _, v := range z {
		sum += math.Exp(v)
	}
	return math.Log(sum)
}

// pick draws a token.
func pick(r *rand.Rand, z []float64) (lp float64, id int) {
	lse, u := logSumExp(z), r.Float64()
	for id = range z {
		if u -= math.Exp(z[id] - lse); u < 0 {
			break
		}
	}
	return z[id] - lse, id
}

func TestRowsOfOnePrompt(t *testing.T) {
	judged := func(g causal) *Outcome { return Judge(Find("agreement/context"), g.Batch, set(t, "")) }
	for seed := range uint64(6) {
		for _, sharp := range []float64{0, 1, 3, 6} {
			for _, noise := range []float64{0, 0.05, 0.3} {
				o := judged(newCausal(seed, sharp, noise))
				require.Equal(t, check.Pass, o.Verdict, "seed %d, sharp %g, noise %g: %+v", seed, sharp, noise, o.Rules)
			}
		}
	}
	rolled := func(name string) func(g causal) {
		return func(g causal) {
			x := g.Tensors[name].Data
			copy(x, append(slices.Clone(x[causalCols:]), x[:causalCols]...))
		}
	}
	late := func(names ...string) func(g causal) {
		return func(g causal) {
			for _, name := range names {
				copy(g.Tensors[name].Data, g.column(name, 1))
			}
		}
	}
	for _, e := range []struct {
		name, fault, says string
		edit              func(g causal)
	}{
		{"log-probs of both passes are one token late", "LOGP-SHIFT", "logp_new", late("logp_new", "logp_old")},
		{"values are one token late", "GAE-VALUE-SHIFT", "values", late("values")},
		{"entropies are one token late", "", "one column late", late("entropy")},
		{"log-probs of other rows", "", "logp_new", func(g causal) { rolled("logp_new")(g); rolled("logp_old")(g) }},
		{"ids of other rows", "", "logp_new", rolled("response_ids")},
		{"entropies of other rows", "", "entropy", func(g causal) { // rows of another prompt, each of another row of it
			x := g.Tensors["entropy"].Data
			slices.Reverse(x)
		}},
	} {
		for seed := range uint64(4) {
			g := newCausal(10+seed, 2.5, 0.02)
			e.edit(g)
			o := judged(g)
			require.Equal(t, check.Fail, o.Verdict, "%s, seed %d", e.name, seed)
			require.Equal(t, e.fault, o.Rules.Violations[0].Fault, "%s: %s", e.name, o.Rules.Violations[0].Reason)
			require.Contains(t, o.Rules.Violations[0].Reason, e.says)
		}
	}
	g := newCausal(20, 2.5, 0.02)
	late("logp_new")(g)
	delete(g.Tensors, "group_id")
	require.Equal(t, check.Skip, judged(g).Verdict)
	g = newCausal(20, 2.5, 0.02)
	g.Meta.Align = dump.AlignShifted
	require.Equal(t, check.Skip, judged(g).Verdict)
}
