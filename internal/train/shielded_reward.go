package train

import (
	"math"
	"strings"

	"plumbline/internal/rng"
)

// wordsWanted is the number of words that the toy reward wants more of.
const wordsWanted = 20

// WordsReward is 1 for a text of more than 20 words, with white space between them, and 0 for another: the toy reward of source
// document A.
func WordsReward(text string) float64 {
	if len(strings.Fields(text)) > wordsWanted {
		return 1
	}
	return 0
}

// keywords are what the shaped reward looks for in an explanation.
var keywords = []string{"because", "enjoy", "like", "similar", "recommend", "story", "style", "genre", "so", "as"}

// ShapedReward is min(words/40, .5) + min(.1·keywords, .3) + min(.1·sentences, .2), at most 1: the later reward of the original. A
// keyword counts once; a sentence is a run of text that ends with . ! or ?.
func ShapedReward(text string) float64 {
	words := strings.Fields(strings.ToLower(text))
	seen := map[string]bool{}
	for _, w := range words {
		seen[strings.Trim(w, ".,;:!?")] = true
	}
	found := 0
	for _, k := range keywords {
		if seen[k] {
			found++
		}
	}
	ends := func(r rune) bool { return strings.ContainsRune(".!?", r) }
	sentences := 0
	for rest := text; ; sentences++ {
		at := strings.IndexFunc(rest, ends)
		if at < 0 || strings.TrimSpace(rest[:at]) == "" {
			break
		}
		rest = strings.TrimLeftFunc(rest[at:], ends)
	}
	return min(1, min(float64(len(words))/40, .5)+min(.1*float64(found), .3)+min(.1*float64(sentences), .2))
}

// Click is 1 if a simulated user who reads the text clicks, with probability .05 + .9·[ShapedReward], and else 0. u is uniform in
// [0, 1).
func Click(text string, u float64) float64 {
	if u < .05+.9*ShapedReward(text) {
		return 1
	}
	return 0
}

// score returns the reward of the text of a sample.
func (c *Shielded) score(text string, sample int) float64 {
	switch c.Reward {
	case "shaped":
		return ShapedReward(text)
	case "clicks":
		return Click(text, rng.New(c.Seed, streamClicks).Uniform(uint64(sample)))
	}
	return WordsReward(text)
}

// streamClicks numbers the random numbers of the simulated users.
const streamClicks = 200

// flow returns the smallest, the largest and the mean of mean|g| of the trainable tensors: the gradient flow of source document A, where
// a parameter without gradient counts as 0.
func flow(means []float64) (low, high, mean float64) {
	low = math.Inf(1)
	for _, m := range means {
		low, high, mean = min(low, m), max(high, m), mean+m/float64(len(means))
	}
	return low, high, mean
}
