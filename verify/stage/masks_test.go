package stage

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
)

func rules(t testing.TB, id string, b *dump.Batch, s *convention.Set) *Outcome {
	t.Helper()
	o := Judge(Find(id), b, s)
	require.NotNil(t, o.Rules, id)
	return o
}

func TestFiniteInTheMask(t *testing.T) {
	s := set(t, "")
	g := newGrid(3, 2, 1).token("logp_new", -1, -2, math.NaN(), -1, math.Inf(-1), 0).row("scores", 1, math.NaN()).row("advantages", 1, 2)
	o := rules(t, "masks/finite", g.Batch, s)
	require.Equal(t, check.Pass, o.Verdict)
	require.Contains(t, o.Rules.Note, "logp_new is not finite at 2 places outside the mask")
	require.Contains(t, o.Rules.Note, "1 scores are NaN")
	g.Tensors["logp_new"].Data[1] = math.NaN()
	o = rules(t, "masks/finite", g.Batch, s)
	require.Equal(t, check.Fail, o.Verdict)
	require.Equal(t, []int{0, 1}, []int{o.Rules.Violations[0].Row, o.Rules.Violations[0].Col})
	g.Tensors["logp_new"].Data[1] = -1
	require.Equal(t, check.Fail, rules(t, "masks/finite", g.row("advantages", 1, math.Inf(1)).Batch, s).Verdict)
	require.Equal(t, check.Fail, rules(t, "masks/finite", g.row("advantages", 1, 2).row("scores", 1, math.Inf(-1)).Batch, s).Verdict)
	// An advantage of a row without tokens is used nowhere.
	g = newGrid(2, 2, 0).row("advantages", 1, math.NaN())
	require.Equal(t, check.Pass, rules(t, "masks/finite", g.Batch, s).Verdict)
	// Many places are counted, some are listed.
	x := make([]float64, 200)
	for i := range x {
		x[i] = math.NaN()
	}
	o = rules(t, "masks/finite", newGrid(200, 200).token("kl", x...).Batch, s)
	require.Len(t, o.Rules.Violations, most)
	require.Contains(t, o.Rules.Note, "200 places")
}

func TestPlaceholders(t *testing.T) {
	s := set(t, "")
	verdict := func(g grid) check.Verdict { return rules(t, "masks/finite", g.Batch, s).Verdict }
	zero, low := make([]float64, 10), make([]float64, 10)
	for i := range low {
		low[i] = -1.5
	}
	require.Equal(t, check.Fail, verdict(newGrid(5, 5, 5).token("logp_new", low...).token("logp_ref", zero...)))
	require.Equal(t, check.Fail, verdict(newGrid(5, 5, 5).token("logp_new", low...).token("logp_gen", append([]float64{0, 0, 0, 0, 0}, low[5:]...)...)), "one row")
	require.Equal(t, check.Pass, verdict(newGrid(5, 5, 5).token("logp_new", zero...).token("logp_ref", low...)), "a policy that has collapsed")
	require.Equal(t, check.Pass, verdict(newGrid(5, 3, 3).token("logp_new", low...).token("logp_old", zero...)), "rows of few tokens")
	require.Equal(t, check.Pass, verdict(newGrid(5, 5, 5).token("logp_new", zero...).token("logp_old", zero...)), "all certain")
	low[3] = 0
	require.Equal(t, check.Pass, verdict(newGrid(5, 5, 5).token("logp_new", low...).token("logp_ref", low...)), "one certain token")
	require.Equal(t, check.Fail, verdict(newGrid(20, 20).token("logp_gen", make([]float64, 20)...)), "nothing to compare with")
	require.Equal(t, check.Pass, verdict(newGrid(10, 10).token("logp_gen", zero...)))
}

func TestLengths(t *testing.T) {
	s := set(t, "").WithFact("max_completion_length", 3.0)
	g := newGrid(4, 3, 0)
	o := rules(t, "masks/lengths", g.Batch, s)
	require.Equal(t, check.Pass, o.Verdict)
	require.Contains(t, o.Rules.Note, "1 of 2 rows have no token")
	require.Equal(t, check.Fail, rules(t, "masks/lengths", newGrid(4, 4).Batch, s).Verdict)
	late := newGrid(5, 5)
	late.Mask[0], late.Mask[1] = false, false
	require.Equal(t, check.Pass, rules(t, "masks/lengths", late.Batch, s).Verdict, "columns before the response are no tokens of it")
	require.Equal(t, check.Fail, rules(t, "masks/lengths", newGrid(4, 0, 0).Batch, s).Verdict)
	// All responses of a step may be cut off, and are masked where that is declared: advice, unless one of them ended.
	g = newGrid(4, 0, 0).token("response_ids", 5, 5, 5, 5, 6, 6, 6, 6)
	g.Tensors["response_ids"].Type = format.I64
	masked := s.WithFact("mask_truncated_completions", true).WithFact("eos_token_id", 2.0)
	require.Equal(t, check.Warn, rules(t, "masks/lengths", g.Batch, masked).Verdict)
	g = g.token("kl", make([]float64, 8)...).token("logp_old", make([]float64, 8)...).token("logp_ref", make([]float64, 8)...)
	require.Equal(t, check.NotSeen, Judge(Find("kl/token"), g.Batch, set(t, "kl.place=token_reward kl.kind=k3 kl.clamp_in=none kl.clamp_out=none")).Verdict)
	require.Equal(t, check.Fail, rules(t, "masks/lengths", g.Batch, s).Verdict)
	g.Tensors["response_ids"].Data[7] = 2
	require.Equal(t, check.Fail, rules(t, "masks/lengths", g.Batch, masked).Verdict)
	copy(g.Tensors["response_ids"].Data[4:], []float64{6, 2, 7, 6})
	require.Equal(t, check.Warn, rules(t, "masks/lengths", g.Batch, masked).Verdict, "the end of a turn")
	g = newGrid(4, 4)
	g.Mask[1] = false
	o = rules(t, "masks/lengths", g.Batch, s)
	require.Equal(t, check.Pass, o.Verdict, "turns of a tool have a length of their own")
	require.Contains(t, o.Rules.Note, "1 rows have holes")
}

// sequences returns a batch with the prompt [9, 9] (the first one padded) before responses of 5 cells; 2 is EOS.
func sequences(mask [][]int, attention [][]int, ids ...[]float64) grid {
	g := newGrid(5, make([]int, len(ids))...)
	var all, attended, response, prompt []float64
	for r, row := range ids {
		first := float64(r % 2)
		all = append(append(all, 9, 9), row...)
		response = append(response, row...)
		attended = append(attended, first, 1)
		prompt = append(prompt, 1+first)
		for t := range row {
			g.Mask[5*r+t] = mask[r][t] == 1
			attended = append(attended, float64(attention[r][t]))
		}
	}
	g.Files[0].PromptCols = 2
	return g.row("input_ids", all...).row("attention_mask", attended...).token("response_ids", response...).row("prompt_len", prompt...)
}

func TestMaskPosition(t *testing.T) {
	all := []int{1, 1, 1, 1, 1}
	three := []int{1, 1, 1, 0, 0}
	ended, cut := []float64{5, 6, 2, 0, 0}, []float64{5, 6, 7, 8, 5}
	tools := []float64{5, 2, 7, 7, 2}
	s := set(t, "").WithFact("eos_token_id", []any{2.0}).WithFact("pad_token_id", 0.0)
	same := s.WithFact("pad_token_id", 2.0)
	padded := []float64{5, 6, 2, 2, 2}
	for _, c := range []struct {
		name                string
		ids                 []float64
		mask, attention     []int
		set                 *convention.Set
		want                check.Verdict
		withoutAttention    check.Verdict
		reason, noteWithout string
	}{
		{"ended", ended, three, three, s, check.Pass, check.Pass, "", ""},
		{"cut off by its length", cut, all, all, s, check.Pass, check.NotSeen, "", ""},
		{"a custom stop token", []float64{5, 6, 7, 0, 0}, three, three, s, check.Pass, check.NotSeen, "", ""},
		{"shifted to the left", ended, []int{1, 1, 0, 0, 0}, three, s, check.Fail, check.Fail, "the first EOS is outside the mask", ""},
		{"shifted to the right", ended, []int{0, 1, 1, 1, 0}, three, s, check.Fail, check.Fail, "padding", ""},
		{"padding is in the mask", ended, all, three, s, check.Fail, check.Fail, "padding", ""},
		{"masked as a whole", ended, []int{0, 0, 0, 0, 0}, three, s, check.NotSeen, check.NotSeen, "", ""},
		{"turns of a tool", tools, []int{1, 1, 0, 0, 1}, all, s, check.Pass, check.NotSeen, "", ""},
		{"pad is EOS", padded, three, three, same, check.Pass, check.Pass, "", ""},
		{"the id of padding was sampled before EOS, and ends the response", []float64{5, 6, 0, 7, 2}, []int{1, 1, 0, 0, 0}, all, s, check.Pass, check.Pass, "", ""},
		{"a token, and then the id of padding", []float64{5, 6, 7, 0, 2}, []int{1, 1, 0, 0, 0}, all, s, check.Fail, check.Fail, "the first EOS is outside the mask", ""},
		{"pad is EOS, a custom stop token", []float64{5, 6, 7, 2, 2}, three, three, same, check.Pass, check.NotSeen, "", "cannot be told"},
		{"pad is EOS, which is outside", padded, []int{1, 1, 0, 0, 0}, three, same, check.Fail, check.NotSeen, "the first EOS is outside the mask", "cannot be told"},
		{"pad is EOS and in the mask", padded, all, all, same, check.Fail, check.Fail, "goes on for 2 tokens", ""},
	} {
		g := sequences([][]int{c.mask}, [][]int{c.attention}, c.ids)
		o := rules(t, "masks/position", g.Batch, c.set)
		require.Equal(t, c.want, o.Verdict, c.name)
		if c.reason != "" {
			require.Contains(t, o.Rules.Violations[0].Reason, c.reason, c.name)
		}
		o = rules(t, "masks/position", g.Without("attention_mask"), c.set)
		require.Equal(t, c.withoutAttention, o.Verdict, "%s, without attention_mask", c.name)
		require.Contains(t, o.Rules.Note, c.noteWithout, c.name)
		o = rules(t, "masks/position", g.Batch, set(t, ""))
		require.NotContains(t, o.Rules.Note, "EOS", "%s, without eos_token_id", c.name)
		if len(o.Rules.Violations) > 0 {
			require.Contains(t, o.Rules.Violations[0].Reason, "padding", c.name)
		}
	}
}

// A mask made as id ≠ pad where pad = eos leaves the EOS of every row out, and attention_mask, made from it, hides it.
func TestNoResponseEnds(t *testing.T) {
	s := set(t, "").WithFact("eos_token_id", 2.0).WithFact("pad_token_id", 2.0)
	three, four := []int{1, 1, 1, 0, 0}, []int{1, 1, 1, 1, 0}
	all := []int{1, 1, 1, 1, 1}
	masks := [][]int{three, four, three, all}
	ids := [][]float64{{5, 6, 7, 2, 2}, {5, 6, 7, 8, 2}, {5, 6, 8, 2, 2}, {5, 6, 7, 8, 9}}
	g := sequences(masks, masks, ids...)
	o := rules(t, "masks/position", g.Batch, s)
	require.Equal(t, check.Fail, o.Verdict)
	require.Contains(t, o.Rules.Violations[0].Reason, "none of the 3 responses that stopped early has its EOS in the mask")
	require.Equal(t, check.Pass, rules(t, "masks/position", g.Batch, s.WithFact("stop_strings", []any{"x"})).Verdict)
	require.Equal(t, check.Pass, rules(t, "masks/position", g.Batch, s.WithFact("max_completion_length", 3.0)).Verdict, "one stopped early, the others were cut off")
	require.Equal(t, check.Pass, rules(t, "masks/position", g.Batch, s.WithFact("eos_token_id", 3.0)).Verdict)
	alike := sequences(masks, masks, []float64{5, 6, 7, 2, 2}, []float64{5, 6, 8, 7, 2}, []float64{5, 8, 7, 2, 2}, ids[3])
	require.Equal(t, check.Pass, rules(t, "masks/position", alike.Batch, s).Verdict, "a custom stop token")
	one := sequences([][]int{three, four, three, three}, [][]int{three, four, three, three}, ids[0], ids[1], ids[2], []float64{5, 6, 2, 2, 2})
	require.Equal(t, check.Pass, rules(t, "masks/position", one.Batch, s).Verdict, "one has ended")
}

func TestMaskOnThePrompt(t *testing.T) {
	// Shifted: column s is token s+1 of [9, 9, 5, 6].
	g := newGrid(3, 0).row("input_ids", 9, 9, 5, 6).row("attention_mask", 1, 1, 1, 1).row("prompt_len", 2)
	g.Meta.Align, g.Files[0].PromptCols = dump.AlignShifted, 1
	g.Mask[1], g.Mask[2] = true, true
	require.Equal(t, check.Pass, rules(t, "masks/position", g.Batch, set(t, "")).Verdict)
	g.Mask[0] = true
	o := rules(t, "masks/position", g.Batch, set(t, ""))
	require.Equal(t, check.Fail, o.Verdict)
	require.Contains(t, o.Rules.Violations[0].Reason, "the mask is true on the prompt, which has 2 tokens")
}

func TestIDs(t *testing.T) {
	three := []int{1, 1, 1, 0, 0}
	row := []float64{5, 6, 2, 0, 0}
	s := set(t, "").WithFact("vocab_size", 10.0)
	g := sequences([][]int{three}, [][]int{three}, row)
	require.Equal(t, check.Pass, rules(t, "masks/ids", g.Batch, s).Verdict)
	require.Equal(t, check.Fail, rules(t, "masks/ids", g.Batch, set(t, "").WithFact("vocab_size", 6.0)).Verdict)
	require.Contains(t, rules(t, "masks/ids", g.Batch, set(t, "")).Rules.Note, "vocab_size is not known")
	g.Tensors["response_ids"].Data[0] = -1
	require.Equal(t, "token id below 0", rules(t, "masks/ids", g.Batch, set(t, "")).Rules.Violations[0].Reason)
	g.Tensors["response_ids"].Data[0] = 5
	// One id differs; then all of them stand one column further on.
	o := rules(t, "masks/ids", g.token("response_ids", 5, 7, 2, 0, 0).Batch, s)
	require.Equal(t, check.Fail, o.Verdict)
	require.Equal(t, 1, o.Rules.Violations[0].Col)
	o = rules(t, "masks/ids", g.token("response_ids", 6, 2, 0, 0, 0).Batch, s)
	require.Contains(t, o.Rules.Violations[0].Reason, "stand +1 columns")
	// Prompts padded on the right: the response follows the prompt, not the padding.
	g = newGrid(2, 2).row("input_ids", 9, 5, 2, 0).row("attention_mask", 1, 1, 1, 0).row("prompt_len", 1).token("response_ids", 5, 2)
	g.Files[0].PromptCols = 2
	require.Equal(t, check.Pass, rules(t, "masks/ids", g.Batch, s).Verdict)
	require.Equal(t, check.Pass, rules(t, "masks/position", g.Batch, s).Verdict)
	require.Equal(t, check.NotSeen, rules(t, "masks/ids", g.Without("response_ids"), s).Verdict)
}

func TestGroupSizes(t *testing.T) {
	s := set(t, "").WithFact("num_generations", 2.0)
	g := newGrid(1, 1, 1, 1).row("group_id", 4, 4, 6)
	o := rules(t, "masks/group", g.Batch, s)
	require.Equal(t, check.Pass, o.Verdict)
	require.Contains(t, o.Rules.Note, "1 of 2 groups are not complete")
	o = rules(t, "masks/group", g.row("group_id", 4, 4, 4).Batch, s)
	require.Equal(t, check.Fail, o.Verdict)
	require.Equal(t, 3.0, o.Rules.Violations[0].Got)
	require.Equal(t, "ROWS-REPEATED", o.Rules.Violations[0].Fault)
	o = rules(t, "masks/group", g.Batch, set(t, "").WithFact("num_generations", 1.0))
	require.Equal(t, check.Fail, o.Verdict)
	require.Empty(t, o.Rules.Violations[0].Fault, "of groups of one the number is more likely to be wrong than the rows")
	require.Equal(t, check.NotSeen, rules(t, "masks/group", g.Without("group_id"), s).Verdict)
}

func TestDuplicates(t *testing.T) {
	s := set(t, "")
	g := newGrid(4, 4, 4, 4, 4).row("group_id", 0, 0, 1, 1)
	same := []float64{1, 2, 3, 4, 1, 2, 3, 4, 5, 6, 7, 8, 5, 6, 7, 8}
	o := rules(t, "masks/duplicates", g.token("response_ids", same...).Batch, s)
	require.Equal(t, check.Warn, o.Verdict)
	require.Len(t, o.Rules.Violations, 2)
	unlikely := slices.Repeat([]float64{-7}, 16) // 2·e^−28 is the chance of copies
	require.Equal(t, check.Fail, rules(t, "masks/duplicates", g.token("logp_gen", unlikely...).Batch, s).Verdict)
	require.Equal(t, check.Warn, rules(t, "masks/duplicates", g.token("logp_gen", unlikely...).Batch, set(t, "logp.source=raw")).Verdict, "before the temperature")
	require.Equal(t, check.Warn, rules(t, "masks/duplicates", g.token("logp_gen", slices.Repeat([]float64{-0.1}, 16)...).Batch, s).Verdict, "a certain policy")
	same[15] = 9
	o = rules(t, "masks/duplicates", g.token("response_ids", same...).Batch, s)
	require.Equal(t, check.Pass, o.Verdict, "one certain answer of two")
	require.Contains(t, o.Rules.Note, "1 of 2 groups")
	g = newGrid(1, 1, 1, 1, 1).row("group_id", 0, 0, 1, 1).token("response_ids", 3, 3, 3, 3)
	require.Equal(t, check.Pass, rules(t, "masks/duplicates", g.Batch, s).Verdict, "answers of one token")
}

// Two files of one step with the same completions are data that were handed out twice, unless their groups are all alike anyway.
func TestCopiedFiles(t *testing.T) {
	const cols = 8
	ids := make([]float64, 4*cols)
	for i := range ids {
		ids[i] = float64(2 + i*i%19)
	}
	copy(ids[2*cols:], ids[:2*cols])
	g := newGrid(cols, cols, cols, cols, cols).row("group_id", 0, 1, 2, 3).token("response_ids", ids...)
	g.Files = []dump.FileInfo{{Name: "rank 0", Hi: 2, Cols: cols}, {Name: "rank 1", Rank: 1, Lo: 2, Hi: 4, Cols: cols}}
	o := rules(t, "masks/duplicates", g.Batch, set(t, ""))
	require.Equal(t, check.Warn, o.Verdict)
	require.Contains(t, o.Rules.Violations[0].Reason, "rank 1 are those of rank 0")
	ids[3*cols]++
	o = rules(t, "masks/duplicates", g.token("response_ids", ids...).Batch, set(t, ""))
	require.Empty(t, o.Rules.Violations, "one row differs")
	copy(ids[cols:2*cols], ids[:cols])
	copy(ids[2*cols:], ids[:2*cols])
	o = rules(t, "masks/duplicates", g.token("response_ids", ids...).Batch, set(t, ""))
	require.Empty(t, o.Rules.Violations, "one answer throughout")
}

// Ids that are repeated as a block, where the prompts are repeated row by row, are no groups of one prompt, declared or not how large a group is.
func TestTiledGroups(t *testing.T) {
	g := newGrid(1, 1, 1, 1, 1, 1, 1).row("scores", 1, 0, 3, 0, 1, 0)
	prompts := []float64{5, 5, 6, 6, 7, 7}
	ids, on := make([]float64, 0, 12), make([]float64, 0, 12)
	for _, p := range prompts {
		ids, on = append(ids, p, 9), append(on, 1, 1)
	}
	for name, x := range map[string][]float64{"input_ids": ids, "attention_mask": on} {
		g.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerRow, Width: 2, Shape: []int{6, 2}, Data: x}
	}
	g.Files[0].PromptCols = 1
	for _, s := range []*convention.Set{set(t, ""), set(t, "").WithFact("num_generations", 2.0)} {
		require.Equal(t, check.Pass, Judge(Find("masks/group"), g.row("group_id", 0, 0, 1, 1, 2, 2).Batch, s).Verdict)
		o := Judge(Find("masks/group"), g.row("group_id", 0, 1, 2, 0, 1, 2).Batch, s)
		require.Equal(t, check.Fail, o.Verdict)
		require.Equal(t, "ADV-WRONG-GROUPS", o.Rules.Violations[0].Fault)
	}
	require.Equal(t, check.Pass, Judge(Find("masks/group"), g.row("group_id", 0, 0, 0, 1, 1, 1).Batch, set(t, "")).Verdict, "turns, or another split")
}

// OpenRLHF's groups are told apart by the text of their prompts: two prompts that are alike are no repeated rows.
func TestGroupsOfPromptsThatAreAlike(t *testing.T) {
	s := set(t, plainGroup+"adv.center=mean adv.scale=none").WithFact("num_generations", 2.0)
	g := newGrid(1, 1, 1, 1, 1, 1, 1).row("group_id", 7, 7, 7, 7, 8, 8).row("scores", 1, 0, 3, 0, 1, 0).row("advantages", .5, -.5, 1.5, -1.5, .5, -.5)
	require.Equal(t, check.Fail, Judge(Find("masks/group"), g.Batch, s).Verdict)
	g.Meta.Framework = "openrlhf"
	o := Judge(Find("masks/group"), g.Batch, s)
	require.Equal(t, check.Pass, o.Verdict)
	require.Contains(t, o.Rules.Note, "1 of 2 group_ids are those of several prompts")
	o = Judge(Find("advantage/group"), g.Batch, s)
	require.Equal(t, check.Pass, o.Verdict)
	require.Equal(t, 2, o.Tally.N+o.Exact, "the four rows of one id are not judged")
	g.row("group_id", 7, 7, 7, 8, 8, 8)
	require.Equal(t, check.Fail, Judge(Find("masks/group"), g.Batch, s).Verdict)
}
