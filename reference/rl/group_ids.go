package rl

import "slices"

// Which rewards are samples of one prompt (adv.group_by): a group has a number, 0 ≤ group[i] < n.

// byGroup returns the places of each group: those of group g are members[starts[g]:starts[g+1]], increasing.
func byGroup(group []int, n int) (starts, members []int) {
	need(group == nil || len(group) == n, badLength)
	members = make([]int, n)
	if group == nil {
		for i := range members {
			members[i] = i
		}
		return []int{0, n}, members
	}
	starts = make([]int, n+1)
	for _, g := range group {
		need(g >= 0 && g < n, badGroup)
		starts[g+1]++
	}
	for g := range n {
		starts[g+1] += starts[g]
	}
	next := slices.Clone(starts)
	for i, g := range group {
		members[next[g]] = i
		next[g]++
	}
	return starts, members
}

// GroupBlocks returns the groups of n rewards of which each size neighbours are one group (adv.group_by
// contiguous_blocks). It panics unless size divides n.
func GroupBlocks(n, size int) []int {
	need(size > 0 && n >= 0 && n%size == 0, badGroup)
	group := make([]int, n)
	for i := range group {
		group[i] = i / size
	}
	return group
}

// GroupUIDs returns the groups of rewards whose samples name their prompt (adv.group_by uid), numbered in order of first
// appearance.
func GroupUIDs(uid []string) []int {
	seen := make(map[string]int)
	group := make([]int, len(uid))
	for i, u := range uid {
		g, ok := seen[u]
		if !ok {
			g = len(seen)
			seen[u] = g
		}
		group[i] = g
	}
	return group
}

// GroupPrompts returns the groups of rewards whose samples have the same prompt, token by token (adv.group_by
// prompt_tokens), numbered in order of first appearance. Two prompts of the batch that happen to be equal are one group.
func GroupPrompts(prompt [][]int) []int {
	key := make([]string, len(prompt))
	for i, p := range prompt {
		text := make([]byte, 0, 8*len(p))
		for _, id := range p {
			for shift := 0; shift < 64; shift += 8 {
				text = append(text, byte(uint64(id)>>shift))
			}
		}
		key[i] = string(text)
	}
	return GroupUIDs(key)
}
