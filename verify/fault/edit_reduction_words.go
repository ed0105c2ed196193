package fault

import (
	"slices"
	"strings"
)

// words says what an edit changes, and which bug of the registry is the nearest.
func (p *reductionParts) words(from, to choice) (id, title string) {
	var text []string
	name := func(bug string) {
		if id == "" {
			id = bug
		}
	}
	if from.keep != to.keep {
		what := p.keep[to.keep].what
		text = append(text, what+" have no loss, and are counted")
		switch {
		case strings.Contains(what, "cut off"):
			name("LOSS-MASK-TRUNCATED")
		case strings.Contains(what, "negative"), strings.Contains(what, "advantage 0"):
			name("LOSS-MASK-NEGATIVE")
		case strings.Contains(what, "single token"):
			name("LOSS-MASK-OTHER")
		}
		name("LOSS-MASK-ADVANTAGES")
	}
	if from.length != to.length {
		was, is := p.length[from.length].what, p.length[to.length].what
		text = append(text, replaced("every response is divided by ", "the sum of a response is not divided by ", was, is))
		ofBatch := strings.Contains(is, "padded") || strings.Contains(is, "longest") || strings.Contains(is, "mean length")
		switch {
		case ofBatch && slices.Contains(lengthConstants, was):
			name("AGG-CONSTANT-OF-BATCH")
		case strings.Contains(is, "padded"), strings.Contains(is, "longest"):
			name("AGG-PAD-DENOMINATOR")
		case strings.Contains(is, "prompt"):
			name("AGG-PROMPT-COUNTED")
		case strings.Contains(is, " + 0."):
			name("MEAN-EPS")
		case strings.HasSuffix(is, "1") && is != "1":
			name("AGG-LENGTH-OFF-BY-ONE")
		case is == twice:
			name("AGG-LENGTH-TWICE")
		}
		name("AGG-KIND")
	}
	if from.count != to.count {
		was, is := p.count[from.count].what, p.count[to.count].what
		text = append(text, replaced("the sum is divided by ", "the sum is not divided by ", was, is))
		local := func(s string) bool { return strings.Contains(s, "micro-batch") || strings.Contains(s, "rank") }
		switch {
		case is == withEnds:
			name("LOSS-MASK-NO-EOS")
		case is == withDropped:
			name("AGG-COUNTS-MASKED")
		case strings.Contains(is, "cells"):
			name("AGG-PAD-DENOMINATOR")
		case strings.Contains(is, "prompt"):
			name("AGG-PROMPT-COUNTED")
		case strings.Contains(is, " + 0."):
			name("MEAN-EPS")
		case strings.Contains(is, "of every response"):
			name("AGG-LENGTH-OFF-BY-ONE")
		case strings.HasPrefix(is, ofItsGroup):
			name("AGG-KIND")
		case local(is) && !local(was) && was != "1":
			name("AGG-LOCAL-DENOMINATOR")
		}
		name("AGG-DENOMINATOR")
	}
	if from.factor != to.factor {
		was, is := p.factor[from.factor].what, p.factor[to.factor].what
		text = append(text, replaced("multiplied by ", "not multiplied by ", was, is))
		name("FACTOR")
	}
	return id, strings.Join(text, "; and ")
}

// replaced says that a number is in the place of another, by what is done with it and what is not; of 1, of which nothing is to be seen, it names the other alone.
func replaced(does, leaves, was, is string) string {
	switch {
	case was == "1":
		return does + is + " besides"
	case is == "1":
		return leaves + was
	}
	return does + is + ", not by " + was
}
