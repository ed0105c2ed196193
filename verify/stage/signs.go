package stage

import (
	"fmt"
	"math"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
)

// The checks of this file look for what is no error of a formula and stops a run from learning, or from being what it claims.
func signChecks() []*Check {
	return []*Check{
		{ID: "masks/prompt", Stage: convention.Masks, Output: "prompt_len", Title: "the prompt that the trainer sees has its declared length",
			Formula: "prompt_len = Σ attention_mask over the columns before the response", Source: "V13, P019",
			Fix:    "cut prompts before the engine and the trainer see them, and hand on the same ids",
			Assert: assertPrompt},
		{ID: "reward/spread", Stage: convention.Reward, Output: "scores", Title: "the scores of some group differ",
			Formula: "max − min of the scores > 0 in at least one group", Source: "V30, B1, P057; DAPO's dynamic sampling drops such groups",
			Fix:    "look at the judge: the right checkpoint, a scorer of sequences, completions that differ",
			Assert: assertSpread},
	}
}

// assertPrompt counts the attended tokens before the response. Rows whose response begins at a column of their own, as in
// shifted dumps, are not looked at.
func assertPrompt(c *Case) *Assertion {
	b := c.B
	length, attention := b.Row("prompt_len"), b.Tensors["attention_mask"]
	a := &Assertion{}
	if len(length) != b.Rows || attention == nil || attention.Layout != dump.PerRow || b.Meta.Align != dump.AlignResponse {
		return a
	}
	for r := range b.Rows {
		at := b.Files[b.File(r)].PromptCols
		if at <= 0 || at > attention.Width || b.Origin[r].Col > 0 {
			continue
		}
		var n float64
		for _, m := range attention.Data[r*attention.Width : r*attention.Width+at] {
			if m != 0 {
				n++
			}
		}
		a.Checked++
		if n != length[r] && len(a.Violations) < most {
			a.Violations = append(a.Violations, Violation{Row: r, Col: -1, Got: n, Fault: "PROMPT-TRUNCATED",
				Reason: fmt.Sprintf("prompt_len is %g and the trainer attends to %g tokens before the response", length[r], n)})
		}
	}
	return a
}

// assertSpread warns where no group has two different scores. A few groups may well be all right or all wrong.
func assertSpread(c *Case) *Assertion {
	score, id := c.B.Row("scores"), c.B.Row("group_id")
	a := &Assertion{Warning: true}
	if len(score) != c.B.Rows || len(id) != c.B.Rows {
		return a
	}
	first := map[float64]float64{}
	size := map[float64]int{}
	for r, g := range id {
		if math.IsNaN(score[r]) {
			return a
		}
		if size[g]++; size[g] == 1 {
			first[g] = score[r]
		} else if first[g] != score[r] {
			a.Checked = len(score)
			return a
		}
	}
	several := 0
	for _, n := range size {
		if n > 1 {
			several++
		}
	}
	if several < 2 {
		return a
	}
	a.Checked = len(score)
	a.Violations = []Violation{{Row: 0, Col: -1, Got: score[0], Fault: "SCORES-CONSTANT",
		Reason: fmt.Sprintf("none of the %d groups has two different scores: all advantages that compare within a group are 0", several)}}
	return a
}
