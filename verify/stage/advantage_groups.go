package stage

import (
	"fmt"
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/reference/rl"
	"plumbline/verify/convention"
)

// membersOf lists the rows of every group.
func membersOf(group []int) [][]int {
	members := make([][]int, len(group))
	for i, g := range group {
		members[g] = append(members[g], i)
	}
	n := 0
	for _, ids := range members {
		if len(ids) > 0 {
			members[n] = ids
			n++
		}
	}
	return members[:n]
}

// groups returns the groups of the rows, numbered from 0, and for every row whether its group is complete. group_id says
// which rows belong together if it was dumped; else adv.group_by and num_generations do.
func (c *Case) groups() (group []int, complete []bool) {
	b := c.B
	size := c.FactOr("num_generations", math.NaN())
	id := b.Row("group_id")
	switch by := c.EnumOr("adv.group_by", "uid"); {
	case len(id) == b.Rows && by != "prompt_tokens":
		keys := make([]string, b.Rows)
		for i, g := range id {
			keys[i] = fmt.Sprint(g)
		}
		group = rl.GroupUIDs(keys)
	case by == "prompt_tokens", by == "contiguous_blocks":
		group = c.groupPrompts()
		if by == "prompt_tokens" || !(size >= 1) || math.Mod(float64(b.Rows), size) != 0 {
			break
		}
		// TRL shuffles the rows after the advantages are taken: they lie in blocks only if the prompts do.
		blocks := rl.GroupBlocks(b.Rows, int(size))
		for i := range blocks {
			if group != nil && group[i] != group[i-i%int(size)] {
				blocks = group
				break
			}
		}
		group = blocks
	}
	if group == nil {
		note(&c.Absent, "group_id")
		return nil, nil
	}
	complete = make([]bool, b.Rows)
	cut := len(b.Missing) > 0 || c.FactOr("steps_per_generation", 1) > c.FactOr("gradient_accumulation_steps", 1)
	some := false
	for _, ids := range membersOf(group) {
		whole := float64(len(ids)) >= size || math.IsNaN(size) && !cut
		for _, i := range ids {
			complete[i] = whole
		}
		some = some || whole
	}
	if !some {
		note(&c.Absent, "a complete group")
	}
	return group, complete
}

// WholeGroups reports whether every group of a batch is there with as many rows as num_generations says, all of one prompt:
// ids may mean another group in another step.
func WholeGroups(b *dump.Batch, set *convention.Set) bool {
	c := NewCase(b, set, 0)
	size := c.FactOr("num_generations", math.NaN())
	prompt := c.groupPrompts()
	group, _ := c.groups()
	if group == nil || prompt == nil {
		return false
	}
	for _, ids := range membersOf(group) {
		if float64(len(ids)) != size || slices.ContainsFunc(ids, func(i int) bool { return prompt[i] != prompt[ids[0]] }) {
			return false
		}
	}
	return true
}

// groupPrompts groups rows by the tokens of their prompts, nil if these are not known.
func (c *Case) groupPrompts() []int {
	b := c.B
	ids, attention := b.Tensors["input_ids"], b.Row("attention_mask")
	if ids == nil || b.Row("input_ids") == nil || attention == nil {
		return nil
	}
	prompts := make([][]int, b.Rows)
	for r := range prompts {
		cols := b.Files[b.Origin[r].File].PromptCols
		if cols < 0 {
			return nil
		}
		for k := r * ids.Width; k < r*ids.Width+min(cols, ids.Width); k++ {
			if attention[k] != 0 {
				prompts[r] = append(prompts[r], int(ids.Data[k]))
			}
		}
	}
	return rl.GroupPrompts(prompts)
}
