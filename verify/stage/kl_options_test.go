package stage

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

func mustParse(t require.TestingT, option, text string) convention.Value {
	v, err := convention.Parse(option, text)
	require.NoError(t, err)
	return v
}

// anyOptions draws a legal value for every option, leaving some unknown.
func anyOptions(t *rapid.T) *convention.Set {
	r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "options"), 2))
	s := &convention.Set{}
	for _, o := range convention.Options() {
		if r.IntN(6) == 0 && o.Name != "adv.kind" && o.Name != "kl.place" {
			continue
		}
		var text string
		switch {
		case r.IntN(10) == 0:
			text = "-"
		case o.Type == convention.BoolType:
			text = []string{"true", "false"}[r.IntN(2)]
		case o.Type == convention.NumberType && r.IntN(4) == 0 && (o.Range == convention.Any || o.Range == convention.NotNegative || o.Range == convention.Unit):
			text = "0"
		case len(o.Values) > 0:
			text = o.Values[r.IntN(len(o.Values))]
		default:
			text = []string{"1", "0.5", "0.95"}[r.IntN(3)]
		}
		s = s.With(o.Name, mustParse(t, o.Name, text), "test")
	}
	for _, f := range []string{"num_generations", "steps_per_generation", "gradient_accumulation_steps", "vocab_size", "max_completion_length", "eos_token_id", "pad_token_id", "num_mini_batches"} {
		if r.IntN(2) == 0 {
			s = s.WithFact(f, float64(r.IntN(5)))
		}
	}
	if r.IntN(3) > 0 {
		s = s.WithFact("reward_weights", []any{1.0, 0.5})
	}
	return s
}

// anyBatch draws a small batch with some of the tensors, of which some hold numbers that are not finite.
func anyBatch(t *rapid.T) *dump.Batch {
	rows, cols := rapid.IntRange(0, 5).Draw(t, "rows"), rapid.IntRange(1, 4).Draw(t, "cols")
	r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
	lengths := make([]int, rows)
	for i := range lengths {
		lengths[i] = r.IntN(cols + 1)
	}
	g := newGrid(cols, lengths...)
	for i := range g.Mask {
		g.Mask[i] = g.Mask[i] != (r.IntN(6) == 0)
	}
	if rows > 1 && r.IntN(2) == 0 {
		g.Files = []dump.FileInfo{{Hi: 1, Cols: max(1, cols-1), PromptCols: 2}, {Lo: 1, Hi: rows, Cols: cols, MicroBatch: 1, PromptCols: -1}}
		for i := 1; i < rows; i++ {
			g.Origin[i].File = 1
		}
	}
	if r.IntN(4) == 0 {
		g.Missing = []string{"rank 1"}
	}
	wild := r.IntN(3) == 0
	number := func() float64 {
		if wild && r.IntN(5) == 0 {
			return []float64{math.NaN(), math.Inf(1), math.Inf(-1), 0, 1e38, -1e-40}[r.IntN(6)]
		}
		if r.IntN(2) == 0 {
			return float64(r.IntN(3))
		}
		return r.NormFloat64()
	}
	put := func(name string, layout dump.Layout, width int, integer bool) {
		if r.IntN(5) == 0 {
			return
		}
		n := rows * width
		if layout == dump.PerToken {
			n *= cols
		}
		x := make([]float64, n)
		for i := range x {
			if x[i] = number(); integer {
				x[i] = float64(r.IntN(4))
			}
		}
		g.put(name, layout, x...)
		g.Tensors[name].Width = width
	}
	for _, name := range []string{"logp_new", "logp_old", "logp_gen", "logp_ref", "values", "values_new", "token_rewards", "kl", "returns", "entropy"} {
		put(name, dump.PerToken, 1, false)
	}
	put("response_ids", dump.PerToken, 1, true)
	put("dones", dump.PerToken, 1, true)
	put("logits", dump.PerToken, 3, false)
	put("scores", dump.PerRow, 1, false)
	put("rewards_per_func", dump.PerRow, 2, false)
	put("group_id", dump.PerRow, 1, true)
	put("prompt_len", dump.PerRow, 1, true)
	put("input_ids", dump.PerRow, cols+2, true)
	put("attention_mask", dump.PerRow, cols+2, true)
	put("reward_baselines", dump.PerRow, 1, false)
	put("next_values", dump.PerRow, 1, false)
	put("advantages", []dump.Layout{dump.PerToken, dump.PerRow}[r.IntN(2)], 1, false)
	if r.IntN(6) == 0 {
		put("kl", dump.PerRow, 1, false)
	}
	return g.Batch
}

func ownChecks() []*Check {
	var own []*Check
	for _, c := range All() {
		switch c.Stage {
		case convention.Masks, convention.LogP, convention.KL, convention.Reward, convention.Advantage:
			own = append(own, c)
		}
	}
	return own
}

// No combination of options, and nothing that a file may hold, makes a check panic; and what it predicts has the layout of
// the output, with a bound that is no NaN.
func TestChecksNeverPanic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b, s := anyBatch(t), anyOptions(t)
		for _, ch := range ownChecks() {
			for _, unit := range []float64{tol.U32, tol.UB} {
				c := NewCase(b, s, unit)
				if ch.Applies != nil && !ch.Applies(c) {
					continue
				}
				if ch.Assert != nil {
					ch.Assert(c)
					continue
				}
				p := ch.Predict(c)
				if p == nil || !c.OK() {
					continue
				}
				require.Len(t, p.Bound, len(p.Want))
				if out := b.Tensors[ch.Output]; out != nil {
					require.Len(t, p.Want, len(out.Data), ch.ID)
				}
				for i, bound := range p.Bound {
					require.False(t, math.IsNaN(bound) || bound < 0, "%s: bound %g of %g at %d", ch.ID, bound, p.Want[i], i)
					if p.Terms != nil {
						p.Terms(i)
					}
				}
			}
			if b.Tensors[ch.Output] != nil {
				Judge(ch, b, s)
			}
		}
	})
}

// Every profile finds enough options to judge the dump of its own kind, or says which are missing.
func TestChecksUnderProfiles(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 9))
	for _, p := range convention.Profiles() {
		g := randomGrid(r, 8, 6, false)
		for _, name := range []string{"logp_new", "logp_old", "logp_ref", "values", "token_rewards", "kl", "returns", "advantages"} {
			g.fill(name, dump.PerToken, func() float64 { return -r.ExpFloat64() })
		}
		g.fill("scores", dump.PerRow, r.NormFloat64)
		g.row("group_id", 0, 0, 0, 0, 1, 1, 1, 1)
		s := convention.FromProfile(p)
		for _, ch := range ownChecks() {
			if ch.Predict == nil || !g.has(ch.Output) || ch.Applies != nil && !ch.Applies(NewCase(g.Batch, s, tol.U32)) {
				continue
			}
			c := NewCase(g.Batch, s, tol.U32)
			ch.Predict(c)
			for _, name := range c.Unknown {
				// What the profile leaves open, and what it has no use for though the dump has the tensor.
				v := s.Value(name)
				require.True(t, v.Kind() == convention.Unknown || v.Kind() == convention.NotApplicable, "%s: %s asks for %s", p.Name, ch.ID, name)
			}
			require.False(t, strings.Contains(fmt.Sprint(c.Absent), "scores"), "%s: %s lacks %v", p.Name, ch.ID, c.Absent)
		}
	}
}

func (g grid) has(name string) bool { return g.Tensors[name] != nil }
