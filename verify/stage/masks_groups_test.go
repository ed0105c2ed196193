package stage

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
)

// Ids that cut across prompts are told where a step has parts of groups, with an attention mask or without; those of conversations, of tasks that are there
// twice, and of rows by themselves are none.
func TestGroupsThatMixPrompts(t *testing.T) {
	prompts := []float64{5, 5, 5, 6, 6, 6, 7, 7, 7, 8, 8, 8}
	for name, c := range map[string]struct {
		id   []float64
		fail bool
	}{
		"by place": {[]float64{0, 1, 2, 1, 2, 0, 2, 0, 1, 0, 1, 3}, true}, "by prompt": {[]float64{0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3}, false}, "two prompts": {[]float64{0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1}, false},
		"each row": {[]float64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, false}, "a task twice": {[]float64{0, 0, 4, 1, 1, 5, 2, 2, 6, 3, 3, 7}, false},
	} {
		for _, masked := range []bool{true, false} {
			g := newGrid(1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1).row("group_id", c.id...)
			var ids, on []float64
			for _, p := range prompts {
				ids, on = append(ids, 0, p, p, 9), append(on, 0, 1, 1, 1)
			}
			g.Tensors["input_ids"] = &dump.Tensor{Name: "input_ids", Layout: dump.PerRow, Width: 4, Shape: []int{12, 4}, Data: ids}
			if masked {
				g.Tensors["attention_mask"] = &dump.Tensor{Name: "attention_mask", Layout: dump.PerRow, Width: 4, Shape: []int{12, 4}, Data: on}
			}
			g.Files[0].PromptCols = 3
			o := Judge(Find("masks/group"), g.Batch, set(t, ""))
			require.Equal(t, map[bool]check.Verdict{true: check.Fail, false: check.Pass}[c.fail], o.Verdict, name)
			if c.fail {
				require.Equal(t, "ADV-WRONG-GROUPS", o.Rules.Violations[0].Fault)
			}
		}
	}
}

// A reference that is the engine's log-probs bit by bit is told from an engine that has the reference's weights by the first step, in which the policy does, too.
func TestReferenceOfTheEngine(t *testing.T) {
	const rows, cols = 40, 8
	r := rand.New(rand.NewPCG(4, 52))
	own, other, _ := policies(r, rows*cols, 1)
	near := make([]float64, rows*cols)
	for i, x := range own.raw {
		near[i] = math.Min(-1e-6, x+0.01*r.NormFloat64())
	}
	for step, id := range map[int]string{1: "REF-IS-GEN", 5: "GEN-UNADAPTED"} {
		g := newGrid(cols, slices.Repeat([]int{cols}, rows)...).token("logp_new", own.raw...).token("logp_old", own.raw...).token("logp_ref", near...).token("logp_gen", near...)
		g.Meta.Step = step
		require.Contains(t, named(t, g, "logp.temperature=1 logp.source=processed"), id)
	}
	g := newGrid(cols, slices.Repeat([]int{cols}, rows)...).token("logp_new", own.raw...).token("logp_old", own.raw...).token("logp_ref", other.raw...).token("logp_gen", other.raw...)
	g.Meta.Step = 1
	require.NotContains(t, named(t, g, "logp.temperature=1 logp.source=processed"), "REF-IS-GEN", "of other weights")
}
