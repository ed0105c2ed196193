package stage

import "plumbline/reference/rl"

// mixing returns a row whose group_id is that of a row with another prompt, where the groups of a step, whole or not, are no prompts: rows of one prompt have
// different ids, and hardly two rows of an id have one prompt; else −1. The turns of conversations have several prompts in a group, and tasks that are alike
// one in several groups, but the rows of a task share the prompt of its first turn.
func (c *Case) mixing(id []float64) int {
	const least, times = 6, 4 // pairs of rows of either kind, and by how many more than those that are right
	text := c.groupPrompts()
	if text == nil {
		text = c.paddedPrompts()
	}
	if text == nil || len(id) != len(text) {
		return -1
	}
	type cell struct {
		group float64
		text  int
	}
	groups, prompts, both, first := map[float64]int{}, map[int]int{}, map[cell]int{}, map[float64]int{}
	row := -1
	for r, g := range id {
		if groups[g]++; groups[g] == 1 {
			first[g] = text[r]
		} else if first[g] != text[r] && row < 0 {
			row = r
		}
		prompts[text[r]]++
		both[cell{g, text[r]}]++
	}
	pairs := func(n int) int { return n * (n - 1) / 2 }
	var right, ofGroups, ofPrompts int
	for _, n := range both {
		right += pairs(n)
	}
	for _, n := range groups {
		ofGroups += pairs(n)
	}
	for _, n := range prompts {
		ofPrompts += pairs(n)
	}
	if min(ofGroups, ofPrompts)-right < least || times*right > ofPrompts-right {
		return -1
	}
	return row
}

// paddedPrompts groups rows by their prompts where nothing says which of their cells are padding, up to the first id that is another than that of the row's
// first cell: padding on the left, or the token that all prompts begin with. nil if they are not known.
func (c *Case) paddedPrompts() []int {
	b := c.B
	ids := b.Tensors["input_ids"]
	if ids == nil || b.Row("input_ids") == nil || b.Row("attention_mask") != nil {
		return nil
	}
	prompts := make([][]int, b.Rows)
	for r := range prompts {
		cols := b.Files[b.Origin[r].File].PromptCols
		if cols <= 0 || cols > ids.Width {
			return nil
		}
		own := ids.Data[r*ids.Width : r*ids.Width+cols]
		for k, x := range own {
			if len(prompts[r]) > 0 || x != own[0] || k == len(own)-1 {
				prompts[r] = append(prompts[r], int(x))
			}
		}
	}
	return rl.GroupPrompts(prompts)
}
