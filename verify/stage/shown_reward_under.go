package stage

import (
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
)

// otherPenalties are numbers of a token that stand for its KL where a program goes wrong: its own with the other sign, the mean or the sum of its row, and the KL of the token before it or behind it.
var otherPenalties = []func(row []float64, t int) float64{
	func(row []float64, t int) float64 { return -row[t] },
	func(row []float64, _ int) float64 { return sumOf(row) / float64(len(row)) },
	func(row []float64, _ int) float64 { return sumOf(row) },
	func(row []float64, t int) float64 {
		if t == 0 {
			return 0
		}
		return row[t-1]
	},
	func(row []float64, t int) float64 {
		if t == len(row)-1 {
			return 0
		}
		return row[t+1]
	},
}

func sumOf(x []float64) (sum float64) {
	for _, v := range x {
		sum += v
	}
	return sum
}

// RewardsUnder returns what stands in rewards of tokens, as [Shown] does, where the KL of a token is another number of its row: the coefficient and the estimator. Where no rewards
// were dumped those that advantages imply say it.
func RewardsUnder(b *dump.Batch, set *convention.Set) (shown [][]Change) {
	for _, of := range otherPenalties {
		var estimates []rewardTerm
		for _, t := range rewardEstimates(b, set) {
			k := make([]float64, len(t.k))
			for r := range b.Rows {
				var cells []int
				var row []float64
				for i := range b.TokensOf(r) {
					cells, row = append(cells, i), append(row, t.k[i])
				}
				for j, i := range cells {
					k[i] = of(row, j)
				}
			}
			t.k = k
			estimates = append(estimates, t)
		}
		lists := rewardTermsIn(b, estimates, longestRows)
		if in := withReturnsImplied(b, estimates); in != nil {
			lists = impliedRewardFormsIn(in, set, estimates, longestRows)
		}
		shown = append(shown, openOf(onePlace(lists), set)...)
	}
	return shown
}

// onePlace are the first of some lists for each place of the KL: a score whose group has no other row is what it is behind a baseline of the others, too.
func onePlace(lists [][]assign) (some [][]assign) {
	placed := func(list []assign) string {
		if i := slices.IndexFunc(list, func(a assign) bool { return a.option == "kl.place" }); i >= 0 {
			return list[i].value.String()
		}
		return ""
	}
	seen := map[string]bool{}
	for _, list := range lists {
		if place := placed(list); !seen[place] {
			seen[place] = true
			some = append(some, list)
		}
	}
	return some
}
