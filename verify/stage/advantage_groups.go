package stage

import (
	"fmt"
	"math"

	"plumbline/internal/format/dump"
	"plumbline/reference/rl"
	"plumbline/verify/convention"
	"plumbline/verify/tol"
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
	if several := c.severalGenerations(); several != "" {
		note(&c.Absent, several)
		return nil, nil
	}
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
	cut := len(b.Missing) > 0 || Updates(c.Set) > 1
	some := false
	for _, ids := range membersOf(group) {
		whole := float64(len(ids)) >= size && !c.promptsAlike(len(ids), size) || math.IsNaN(size) && !cut
		for _, i := range ids {
			complete[i] = whole
		}
		some = some || whole
	}
	if !some && Updates(c.Set) > 1 {
		note(&c.Absent, otherSteps+": a complete group")
	} else if !some {
		note(&c.Absent, "a complete group")
	}
	return group, complete
}

// BlocksUnsure reports whether which rows are a group is a guess that their advantages do not confirm: neither group_id nor prompts are there, blocks of
// num_generations rows are taken for groups, as a trainer has them when it takes advantages, and the advantages of a block do not sum to 0. TRL 1.16.0
// shuffles the rows before it makes losses of them (grpo_trainer.py, _prepare_inputs, shuffle_sequence_dict), where a hook may stand.
func BlocksUnsure(o *Outcome) bool {
	c := o.Case
	size := c.FactOr("num_generations", math.NaN())
	if c.EnumOr("adv.group_by", "uid") != "contiguous_blocks" || len(c.B.Row("group_id")) == c.B.Rows || !(size > 1) || c.groupPrompts() != nil {
		return false
	}
	adv := c.Optional("advantages").X
	if adv == nil || math.Mod(float64(c.B.Rows), size) != 0 {
		return false
	}
	of := make([]float64, c.B.Rows) // every token of a row has the same
	for i := range c.B.Tokens() {
		of[i/c.B.Cols] = adv[i]
	}
	unit := max(Grid(of), tol.U32)
	for lo := 0; lo < len(of); lo += int(size) {
		var sum, most float64
		for _, a := range of[lo : lo+int(size)] {
			sum, most = sum+a, max(most, math.Abs(a))
		}
		if math.Abs(sum) > 16*size*unit*most {
			return true
		}
	}
	return false
}

// GroupsOverSteps says of the rows of several steps whether a group is cut, which has not num_generations rows or rows of
// several prompts (ids may mean another group in another step), and whether each step shares a group with the next.
func GroupsOverSteps(b *dump.Batch, set *convention.Set) (cut, linked bool) {
	c := NewCase(b, set, 0)
	size := c.FactOr("num_generations", math.NaN())
	group, _ := c.groups()
	if group == nil || !(size > 1) {
		return false, false
	}
	prompt := c.groupPrompts()
	step := func(row int) int { return b.Files[b.Origin[row].File].Step }
	last := map[int]bool{} // steps that share no group with the next
	first, final := step(0), step(0)
	for r := range b.Rows {
		last[step(r)] = true
		first, final = min(first, step(r)), max(final, step(r))
	}
	for _, ids := range membersOf(group) {
		lo, hi := step(ids[0]), step(ids[0])
		for _, i := range ids {
			lo, hi = min(lo, step(i)), max(hi, step(i))
			cut = cut || prompt != nil && prompt[i] != prompt[ids[0]]
		}
		cut = cut || float64(len(ids)) != size && !c.promptsAlike(len(ids), size)
		for k := lo; k < hi; k++ {
			delete(last, k)
		}
	}
	delete(last, final)
	return cut, prompt != nil && len(last) == 0 && first < final
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
