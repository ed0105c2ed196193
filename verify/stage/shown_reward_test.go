package stage

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
)

// Scores that are held within a range stop at its ends.
func TestRangesOfScoresAreShown(t *testing.T) {
	for seed := range uint64(4) {
		b := ppoBatch(seed, func(row int, score float64, kl []float64, last int) []float64 {
			x := rewardsOf(0.0317, 0)(row, min(max(score, -0.4), 0.4), kl, last)
			if row == 2 {
				x[last] += 3e-11 - min(max(score, -0.4), 0.4)
			}
			return x
		}, gaeOf(1, 1))
		b.Row("scores")[2] = 0 // of which rounding is left
		got := texts(Shown(Find("reward/token"), b, &convention.Set{})[0])
		require.Equal(t, "before_baseline", got["reward.clip"])
		require.Equal(t, "-0.4,0.4", got["reward.clip_range"])
		fits, _ := Complete(Find("reward/token"), b, &convention.Set{})
		require.NotEmpty(t, fits)
		require.Equal(t, check.Pass, fits[0].Outcome.Verdict)
	}
}

// One response without an end shows its penalty, or the share of its score, beside the range that all scores are held in then.
func TestAPenaltyWithinARangeIsShown(t *testing.T) {
	for rule, of := range map[string]func(score float64) float64{
		"subtract": func(score float64) float64 { return score - 0.5 },
		"scale":    func(score float64) float64 { return score * 0.5 },
	} {
		open := -1
		b := ppoBatch(1, func(row int, score float64, kl []float64, last int) []float64 {
			if last == 15 && (open < 0 || open == row) {
				open = row
				score = of(score)
			}
			return rewardsOf(0.0317, 0)(row, min(max(score, -0.6), 0.6), kl, last)
		}, gaeOf(1, 1))
		c := NewCase(b, &convention.Set{}, 0)
		spans, longest := c.spans()
		for r, n := range spans {
			if n == longest && r != open {
				at := r*b.Cols + c.last(r)
				b.Mask[at] = false
				b.Token("token_rewards")[at-1] = -0.0317*b.Token("kl")[at-1] + min(max(b.Row("scores")[r], -0.6), 0.6)
			}
		}
		require.True(t, slices.ContainsFunc(Shown(Find("reward/token"), b, &convention.Set{}), func(list []Change) bool {
			got := texts(list)
			return got["eos.rule"] == rule && got["eos.penalty"] == "0.5" && got["reward.clip_range"] == "-0.6,0.6"
		}))
	}
}

// Steps of which each shows one side of a range tell both together, and a range has but one side where the scores beyond the other are as they were.
func TestSidesOfRangesOfScoresAreShownByStepsTogether(t *testing.T) {
	held := func(lo, hi float64, seed uint64, scores func(x float64) float64) Step {
		b := ppoBatch(seed, func(row int, score float64, kl []float64, last int) []float64 {
			return rewardsOf(0.0317, 0)(row, min(max(scores(score), lo), hi), kl, last)
		}, gaeOf(1, 1))
		for r, x := range b.Row("scores") {
			b.Row("scores")[r] = scores(x)
		}
		return Step{B: b, Set: &convention.Set{}}
	}
	ends := func(steps ...Step) string {
		fits := Solve(Find("reward/token"), steps)
		if len(fits) == 0 {
			return ""
		}
		return texts(fits[0].Changes)["reward.clip_range"]
	}
	above, below := func(x float64) float64 { return 3 * math.Abs(x) }, func(x float64) float64 { return -3 * math.Abs(x) }
	require.Equal(t, "-0.3,0.4", ends(held(-0.3, 0.4, 1, above), held(-0.3, 0.4, 2, below)))
	require.Equal(t, "-0.3,0.4", ends(held(-0.3, 0.4, 1, func(x float64) float64 { return 3 * x })))
	require.Equal(t, "-1e30,0.4", ends(held(-99, 0.4, 1, func(x float64) float64 { return 3 * x })))
	require.Empty(t, ends(held(-99, 99, 1, above)), "nothing is held")
}

// Of scores of which the longest alone are beyond a range a number that stands in place of theirs is as good, so that both are proposed.
func TestRangesOfScoresOfTheLongestAreShown(t *testing.T) {
	const top = 5.5
	b := ppoBatch(1, func(row int, score float64, kl []float64, last int) []float64 {
		return rewardsOf(0.0317, 0)(row, score, kl, last)
	}, gaeOf(1, 1))
	c := NewCase(b, &convention.Set{}, 0)
	spans, longest := c.spans()
	n := 0
	for r, score := range b.Row("scores") {
		if spans[r] == longest {
			b.Row("scores")[r] = top + float64(r)
			b.Token("token_rewards")[r*b.Cols+c.last(r)] += top - score
			n++
		}
	}
	require.Greater(t, n, 1)
	var ranges []string
	for _, changes := range Shown(Find("reward/token"), b, &convention.Set{}) {
		ranges = append(ranges, texts(changes)["reward.clip_range"]+texts(changes)["eos.rule"])
	}
	require.Contains(t, ranges, "-5.5,5.5")
	require.Contains(t, ranges, "replace")
}

// Scores may be held in a range after a penalty for the responses without an end is taken from them.
func TestRangesBehindAPenaltyAreShown(t *testing.T) {
	for seed := range uint64(4) {
		of := func(row int, score float64, last int) float64 {
			if last == 15 {
				return float64(float32(0.3 + float64(row)/40))
			}
			return score
		}
		b := ppoBatch(seed, func(row int, score float64, kl []float64, last int) []float64 {
			return rewardsOf(0.0317, 0.5)(row, min(of(row, score, last), 0.6), kl, last)
		}, gaeOf(1, 1))
		for r, x := range b.Row("scores") {
			b.Row("scores")[r] = of(r, x, NewCase(b, &convention.Set{}, 0).last(r))
		}
		set := (&convention.Set{}).WithFact("eos_token_id", 2.0)
		got := texts(Shown(Find("reward/token"), b, set)[0])
		require.Equal(t, "subtract 0.5 before_baseline", got["eos.rule"]+" "+got["eos.penalty"]+" "+got["reward.clip"])
		fits, _ := Complete(Find("reward/token"), b, set)
		require.NotEmpty(t, fits)
		require.Equal(t, check.Pass, fits[0].Outcome.Verdict)
	}
}

// Rewards that are one number between the ends of responses were whitened, and hold no KL however far policy and reference are apart.
func TestWhitenedRewardsWithoutAKLAreShown(t *testing.T) {
	b := ppoBatch(1, func(row int, score float64, kl []float64, last int) []float64 {
		x := rewardsOf(0, 0)(row, score, kl, last)
		for i := range x {
			x[i] = x[i]*1.7 - 0.13
		}
		return x
	}, gaeOf(1, 1))
	got := texts(Shown(Find("reward/token"), b, &convention.Set{})[0])
	require.Equal(t, "none", got["kl.place"])
	require.Equal(t, "shift_mean_false", got["rewards.whiten"])
}

// Where most responses lack an end, the others tell that the score stands behind the last token.
func TestPenaltyOfMostResponsesIsShown(t *testing.T) {
	for seed := range uint64(4) {
		whole := ppoBatch(seed, rewardsOf(0.0317, 0.43), gaeOf(1, 1))
		b := *whole
		some := []int{3, 7, 11, 0, 1} // the first three take all columns
		b.Rows, b.Mask, b.Tensors, b.Files = len(some), nil, map[string]*dump.Tensor{}, []dump.FileInfo{{Name: "f", Hi: len(some), Cols: b.Cols}}
		for name, x := range whole.Tensors {
			y, width := *x, len(x.Data)/whole.Rows
			y.Data, y.Shape = nil, append([]int{len(some)}, x.Shape[1:]...)
			for _, r := range some {
				y.Data = append(y.Data, x.Data[r*width:(r+1)*width]...)
			}
			b.Tensors[name] = &y
		}
		for _, r := range some {
			b.Mask = append(b.Mask, whole.Mask[r*b.Cols:(r+1)*b.Cols]...)
		}
		for r := 3; r < len(some); r++ {
			i := r*b.Cols + NewCase(&b, &convention.Set{}, 0).last(r)
			rewards, score := b.Token("token_rewards"), b.Row("scores")[r]
			rewards[i], rewards[i+1] = -0.0317*b.Token("kl")[i], score
		}
		id, ok := EndToken(&b)
		require.True(t, ok)
		got := texts(Shown(Find("reward/token"), &b, (&convention.Set{}).WithFact("eos_token_id", float64(id)))[0])
		require.Equal(t, "0.43", got["eos.penalty"])
	}
}

// What a baseline leaves of scores may be held in a range before the KL is subtracted.
func TestRangesBehindABaselineAreShown(t *testing.T) {
	for _, center := range []string{"mean", "loo"} {
		b := ppoBatch(3, rewardsOf(0.0317, 0), gaeOf(1, 1))
		const group = 4
		score, id := b.Row("scores"), make([]float64, b.Rows)
		c := NewCase(b, &convention.Set{}, 0)
		for r := range id {
			id[r] = float64(r / group)
		}
		for r, s := range score {
			var sum, n float64
			for k, g := range id {
				if g == id[r] && (center == "mean" || k != r) {
					sum, n = sum+score[k], n+1
				}
			}
			b.Token("token_rewards")[r*b.Cols+c.last(r)] += min(max(s-sum/n, -0.25), 0.25) - s
		}
		groups := *b.Tensors["scores"]
		groups.Data = id
		b.Tensors["group_id"] = &groups
		found := false
		for _, changes := range Shown(Find("reward/token"), b, &convention.Set{}) {
			got := texts(changes)
			found = found || got["reward.clip"] == "after_baseline" && got["reward.clip_range"] == "-0.25,0.25" && got["adv.center"] == center && got["kl.place"] == "sequence_reward_after"
		}
		require.True(t, found, center)
	}
}

// Where all responses have one length, none of them lacks an end, and their scores tell what whitened rewards were divided by.
func TestWhitenedRewardsOfOneLengthAreShown(t *testing.T) {
	b := ppoBatch(1, rewardsOf(0.25, 0), gaeOf(1, 1))
	r, score, kl := b.Token("token_rewards"), b.Row("scores"), b.Token("kl")
	for i := range r {
		b.Mask[i], kl[i] = true, float64(float32(0.2*math.Sin(float64(7*i))))
		x := -0.25 * kl[i]
		if i%b.Cols == b.Cols-1 {
			x += score[i/b.Cols]
		}
		r[i] = float64(float32(1.7*x - 0.13))
	}
	got := texts(Shown(Find("reward/token"), b, &convention.Set{})[0])
	require.Equal(t, "0.25", got["kl.beta"])
	require.Equal(t, "shift_mean_false", got["rewards.whiten"])
}

// Rewards that are all in one cell of a response, and whitened after they were dumped, are one number between two tokens: γ and λ are shown all the same.
func TestDecaysOfWhitenedScoresAreShown(t *testing.T) {
	recurse := gaeOf(0.99, 0.9)
	b := ppoBatch(1, rewardsOf(0, 0), func(r, v []float64) []float64 {
		x := make([]float64, len(r))
		for i := range r {
			x[i] = 4.9*r[i] - 0.14
		}
		return recurse(x, v)
	})
	lists := decays(b)
	require.NotEmpty(t, lists)
	require.Equal(t, []assign{word("rewards.whiten", "shift_mean_false"), amount("gae.gamma", 0.99), amount("gae.lambda", 0.9)}, lists[0])
}

// The scores of responses without an end may be multiplied by a number, which one such response tells no better than a penalty.
func TestFactorsOfScoresWithoutAnEndAreShown(t *testing.T) {
	longest := func(row int) bool { return row < 2 }
	texts := func(y ...float64) (list []string) {
		for _, rule := range penalties(y, []float64{0.5, -0.8, 0.3, -0.2}, 1, longest) {
			list = append(list, rule[0].value.String()+" "+rule[1].value.String())
		}
		return list
	}
	require.Equal(t, []string{"scale 0.3"}, texts(0.15, -0.24, 0.3, -0.2))
	require.Equal(t, []string{"subtract 0.35", "scale 0.3"}, texts(0.15, -0.8, 0.3, -0.2))
	require.Equal(t, []string{"subtract 0.4"}, texts(0.1, -1.2, 0.3, -0.2))
	alike := penalties([]float64{0.3 * 0.77, 0.3 * 0.75, 0.3, -0.2}, []float64{0.77, 0.75, 0.3, -0.2}, 1, longest)
	require.Equal(t, "scale", alike[0][0].value.String())
	require.Equal(t, "subtract", alike[1][0].value.String())
	require.Equal(t, []string{"replace -1"}, texts(-1, -1, 0.3, -0.2))
	require.Empty(t, texts(0.15, -0.24, 0.09, -0.2), "a response with an end")
}

// A penalty of the responses with an end is read off the rewards and off returns, of which values that padding has are no part.
func TestPenaltiesOfTheWrongResponsesAreShown(t *testing.T) {
	for seed := range uint64(4) {
		rewards := func(wrong bool) func(int, float64, []float64, int) []float64 {
			return func(row int, score float64, kl []float64, last int) []float64 {
				r := rewardsOf(0.05, 0)(row, score, kl, last)
				if (last < 15) == wrong {
					r[last] -= 0.7
				}
				return r
			}
		}
		for _, id := range []string{"reward/token", "gae/returns"} {
			b := ppoBatch(seed, rewards(true), gaeOf(0.98, 0.9))
			right := ppoBatch(seed, rewards(false), gaeOf(0.98, 0.9))
			if id == "gae/returns" {
				delete(b.Tensors, "token_rewards")
				delete(right.Tensors, "token_rewards")
				for i := range b.Mask {
					if !b.Mask[i] {
						b.Token("values")[i] = 0.3
					}
				}
			}
			shown := InvertedPenalties(Find(id), b, &convention.Set{})
			require.NotEmpty(t, shown)
			got := texts(shown[0])
			require.Equal(t, "subtract 0.7 0.05", got["eos.rule"]+" "+got["eos.penalty"]+" "+got["kl.beta"])
			require.Empty(t, InvertedPenalties(Find(id), right, &convention.Set{}), "the responses without an end")
		}
	}
}
