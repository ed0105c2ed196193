package fault

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"plumbline/internal/format/dump"
	"plumbline/verify/stage"
)

// sources are what programs take for the rewards of their rows. Ties of ranks take the order of the rows, as argsort of argsort does.
var sources = []struct {
	name, id, title string
	of              func(r []float64, groups [][]int) []float64
}{
	{"rewards", "", "", func(r []float64, _ [][]int) []float64 { return r }},
	{"ranks", "ADV-REWARDS", "the ranks of the rewards in their group stand for the rewards", func(r []float64, groups [][]int) []float64 {
		x := make([]float64, len(r))
		for _, g := range groups {
			at := slices.Clone(g)
			slices.SortStableFunc(at, func(i, j int) int { return compare(r[i], r[j]) })
			for k, i := range at {
				x[i] = float64(k)
			}
		}
		return x
	}},
	{"mean ranks", "ADV-REWARDS", "the ranks of the rewards in their group, ties with their mean, stand for the rewards", func(r []float64, groups [][]int) []float64 {
		x := make([]float64, len(r))
		for _, g := range groups {
			for _, i := range g {
				for _, j := range g {
					if r[j] < r[i] {
						x[i]++
					} else if r[j] == r[i] && i != j {
						x[i] += 0.5
					}
				}
			}
		}
		return x
	}},
	{"signs", "ADV-REWARDS", "the signs of the rewards stand for the rewards", func(r []float64, _ [][]int) []float64 {
		return mapped(r, func(v float64) float64 { return float64(compare(v, 0)) })
	}},
	{"squares", "ADV-REWARDS", "the squares of the rewards stand for the rewards", func(r []float64, _ [][]int) []float64 {
		return mapped(r, func(v float64) float64 { return v * v })
	}},
	{"magnitudes", "ADV-REWARDS", "the magnitudes of the rewards stand for the rewards", func(r []float64, _ [][]int) []float64 { return mapped(r, math.Abs) }},
	{"bits", "ADV-REWARDS", "whether a reward is above 0 stands for the reward", func(r []float64, _ [][]int) []float64 {
		return mapped(r, func(v float64) float64 { return float64(max(compare(v, 0), 0)) })
	}},
	{"exponentials", "ADV-REWARDS", "the exponentials of the rewards stand for the rewards", func(r []float64, _ [][]int) []float64 { return mapped(r, math.Exp) }},
}

// writtenBounds are the bounds of rewards that people write.
var writtenBounds = []float64{0.1, 0.2, 0.25, 0.3, 0.5, 0.75, 1, 1.5, 2, 2.5, 3, 4, 5, 8, 10, 15, 20, 50, 100}

// heldRange is what rewards are held within.
type heldRange struct {
	lo, hi float64
	title  string
}

// heldRanges returns the ranges of written bounds that some of the rewards are outside of.
func heldRanges(r []float64) (list []heldRange) {
	least, most := math.Inf(1), math.Inf(-1)
	for _, x := range r {
		least, most = min(least, x), max(most, x)
	}
	inf := math.Inf(1)
	for _, b := range writtenBounds {
		above, below := most > b, least < -b
		if above || below {
			list = append(list, heldRange{-b, b, fmt.Sprintf("within ±%g", b)})
		}
		if above || least < 0 {
			list = append(list, heldRange{0, b, fmt.Sprintf("between 0 and %g", b)})
		}
		if above && below {
			list = append(list, heldRange{-inf, b, fmt.Sprintf("below %g", b)}, heldRange{-b, inf, fmt.Sprintf("above −%g", b)})
		}
	}
	return list
}

func compare(a, b float64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func mapped(x []float64, f func(float64) float64) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = f(v)
	}
	return y
}

// scopes are the sets of rows over which a statistic is taken.
var scopes = []struct{ name, id, title string }{
	{"group", "", "the group"},
	{"blocks", "ADV-GROUPS-BY-POSITION", "num_generations consecutive rows"},
	{"turned blocks", "ADV-GROUPS-BY-POSITION", "k consecutive rows, of k groups: the sides of the reshape are exchanged"},
	{"dealt blocks", "ADV-GROUPS-BY-POSITION", "num_generations consecutive rows of those that were dealt out to the ranks in turn"},
	{"rank blocks", "ADV-GROUPS-BY-POSITION", "num_generations consecutive rows of the rank"},
	{"stride", "ADV-GROUPS-INTERLEAVED", "every k-th row, of k groups"},
	{"file stride", "ADV-GROUPS-INTERLEAVED", "every k-th row of the micro-batch, of its k groups"},
	{"file generations", "ADV-GROUPS-INTERLEAVED", "every num_generations-th row of the micro-batch"},
	{"generations", "ADV-GROUPS-INTERLEAVED", "every num_generations-th row of the step"},
	{"sampled stride", "ADV-GROUPS-INTERLEAVED", "every k-th row in the order in which they were sampled, of k groups"},
	{"sampled generations", "ADV-GROUPS-INTERLEAVED", "every num_generations-th row in the order in which they were sampled"},
	{"rank stride", "ADV-GROUPS-INTERLEAVED", "every k-th row of the rank, of its k groups"},
	{"file group", "ADV-GROUPS-PER-FILE", "the part of the group in the micro-batch"},
	{"rank group", "ADV-GROUPS-PER-RANK", "the part of the group on the rank"},
	{"file", "ADV-GROUPS-PER-FILE", "the micro-batch"},
	{"rank", "ADV-GROUPS-PER-RANK", "the rank"},
	{"all", "ADV-ONE-GROUP", "all rows of the step"},
	{"half blocks", "ADV-WRONG-GROUPS", "num_generations/2 consecutive rows: half a group"},
	{"double blocks", "ADV-WRONG-GROUPS", "2·num_generations consecutive rows: two groups as one"},
	{"alternate", "ADV-WRONG-GROUPS", "every other row of the group"},
	{"tiled", "ADV-OTHER-GROUP", "the r-th group for row r, of k groups in turn: repeated as a block, not row by row"},
	{"tiled in file", "ADV-OTHER-GROUP", "the groups of the micro-batch in turn: repeated as a block, not row by row"},
	{"rolled up", "ADV-WRONG-GROUPS", "the groups of the rows behind: ids that are off by one row"},
	{"rolled down", "ADV-WRONG-GROUPS", "the groups of the rows before: ids that are off by one row"},
	{"sampled up", "ADV-WRONG-GROUPS", "the groups of the rows behind in the order in which they were sampled: ids that are off by one row"},
	{"sampled down", "ADV-WRONG-GROUPS", "the groups of the rows before in the order in which they were sampled: ids that are off by one row"},
	{"solved", "ADV-WRONG-GROUPS", "other rows than those of group_id: the advantages show them"},
}

// groupSize returns the number of rows of a group, and whether all groups have as many.
func groupSize(id []float64) (n int, same bool) {
	rows := map[float64]int{}
	for _, g := range id {
		rows[g]++
	}
	same = len(rows) > 0
	for _, k := range rows {
		same = same && (n == 0 || n == k)
		n = k
	}
	return n, same
}

// severalRanks reports whether a batch is of a run on several ranks.
func severalRanks(b *dump.Batch) bool {
	return b.Meta.WorldSize > 1 || slices.ContainsFunc(b.Files, func(f dump.FileInfo) bool { return f.Rank != b.Files[0].Rank })
}

// samplingOrder returns the place of every row among the sample_ids of the step, nil where these are missing, not distinct, or in their order anyway.
func samplingOrder(b *dump.Batch) []int {
	id := b.Row("sample_id")
	if len(id) != b.Rows || slices.IsSorted(id) {
		return nil
	}
	sorted := slices.Compact(slices.Sorted(slices.Values(id)))
	if len(sorted) != b.Rows {
		return nil
	}
	place := make([]int, b.Rows)
	for r, x := range id {
		place[r], _ = slices.BinarySearch(sorted, x)
	}
	return place
}

// scopeRows returns for every row the rows of its set, nil where the batch does not say.
func scopeRows(c *stage.Case, name string) [][]int {
	b := c.B
	id := b.Row("group_id")
	if id == nil {
		return nil
	}
	generations := int(c.FactOr("num_generations", 0))
	if size, same := groupSize(id); generations < 2 && same {
		generations = size
	}
	groupsOf := func(rows func(r int) bool) int {
		seen := map[float64]bool{}
		for r, g := range id {
			if rows(r) {
				seen[g] = true
			}
		}
		return max(len(seen), 1)
	}
	rank := func(r int) int { return b.Files[b.File(r)].Rank }
	inRank := map[int]int{} // the place of a row on its rank
	place := make([]int, b.Rows)
	for r := range place {
		place[r] = inRank[rank(r)]
		inRank[rank(r)]++
	}
	var sampled, at []int // the place of a row in the order of sampling, and the row of a place
	key := func(r int) [3]float64 {
		f := b.File(r)
		switch name {
		case "group":
			return [3]float64{id[r]}
		case "blocks":
			return [3]float64{float64(r / max(generations, 1))}
		case "turned blocks":
			return [3]float64{float64(r / groupsOf(func(int) bool { return true }))}
		case "dealt blocks":
			return [3]float64{float64((place[r]*len(inRank) + rank(r)) / max(generations, 1))}
		case "rank blocks":
			return [3]float64{float64(rank(r)), float64(place[r] / max(generations, 1))}
		case "stride":
			return [3]float64{float64(r % groupsOf(func(int) bool { return true }))}
		case "sampled stride":
			return [3]float64{float64(sampled[r] % groupsOf(func(int) bool { return true }))}
		case "sampled generations":
			return [3]float64{float64(sampled[r] % max(generations, 1))}
		case "generations":
			return [3]float64{float64(r % max(generations, 1))}
		case "file stride":
			return [3]float64{float64(f), float64((r - b.Files[f].Lo) % groupsOf(func(s int) bool { return b.File(s) == f }))}
		case "file generations":
			return [3]float64{float64(f), float64((r - b.Files[f].Lo) % max(generations, 1))}
		case "rank stride":
			return [3]float64{float64(rank(r)), float64(place[r] % groupsOf(func(s int) bool { return rank(s) == rank(r) }))}
		case "half blocks":
			return [3]float64{float64(r / max(generations/2, 1))}
		case "double blocks":
			return [3]float64{float64(r / max(2*generations, 1))}
		case "alternate":
			return [3]float64{id[r], float64(r % 2)}
		case "rolled up":
			return [3]float64{id[(r+1)%b.Rows]}
		case "rolled down":
			return [3]float64{id[(r+b.Rows-1)%b.Rows]}
		case "sampled up":
			return [3]float64{id[at[(sampled[r]+1)%b.Rows]]}
		case "sampled down":
			return [3]float64{id[at[(sampled[r]+b.Rows-1)%b.Rows]]}
		case "file group":
			return [3]float64{float64(f), id[r]}
		case "rank group":
			return [3]float64{float64(rank(r)), id[r]}
		case "file":
			return [3]float64{float64(f)}
		case "rank":
			return [3]float64{float64(rank(r))}
		}
		return [3]float64{}
	}
	if sampled = samplingOrder(b); sampled != nil {
		at = make([]int, b.Rows)
		for r, place := range sampled {
			at[place] = r
		}
	}
	if strings.HasPrefix(name, "sampled") && sampled == nil {
		return nil
	}
	if slices.Contains([]string{"blocks", "half blocks", "double blocks", "generations", "sampled generations", "file generations", "dealt blocks", "rank blocks"}, name) && generations < 2 {
		return nil
	}
	if name == "solved" || (strings.HasPrefix(name, "rank") || name == "dealt blocks") && !severalRanks(b) || strings.Contains(name, "file") && len(b.Files) < 2 {
		return nil // all rows are those of the only rank, or of the only file
	}
	if name == "tiled" || name == "tiled in file" {
		of := make([][]int, b.Rows)
		for r := range of {
			var first []float64 // the groups in the order of their first rows
			members := map[float64][]int{}
			lo, hi := 0, b.Rows
			if name == "tiled in file" {
				lo, hi = b.Files[b.File(r)].Lo, b.Files[b.File(r)].Hi
			}
			for q := lo; q < hi; q++ {
				if members[id[q]] == nil {
					first = append(first, id[q])
				}
				members[id[q]] = append(members[id[q]], q)
			}
			of[r] = members[first[(r-lo)%len(first)]]
		}
		return of
	}
	sets := map[[3]float64][]int{}
	keys := make([][3]float64, b.Rows)
	for r := range keys {
		keys[r] = key(r)
		sets[keys[r]] = append(sets[keys[r]], r)
	}
	if name == "group" && sampled != nil { // what the first or the next answer is, the sampling says
		for _, rows := range sets {
			slices.SortFunc(rows, func(i, j int) int { return sampled[i] - sampled[j] })
		}
	}
	of := make([][]int, b.Rows)
	for r, k := range keys {
		of[r] = sets[k]
	}
	return of
}

// statistics are what programs subtract from a reward, and divide by.
var centres = []struct{ name, title string }{
	{"mean", "the mean"}, {"loo", "the mean of the other rows"}, {"none", "nothing"}, {"median", "the median"}, {"lower median", "the lower median"}, {"max", "the largest reward"}, {"min", "the smallest reward"},
	{"first", "the first reward"}, {"last", "the last reward"},
	{"first half", "the mean of the first half of the rows"}, {"second half", "the mean of the second half of the rows"}, {"sum", "the sum"}, {"loo n", "the sum of the other rows over the number of all rows"}, {"loo n2", "the mean with the row itself, over n − 1"},
	{"loo times", "the sum of the other rows times n − 1"}, {"loo sum", "the sum of the other rows"},
	{"best other", "the largest reward of the other rows"}, {"worst other", "the smallest reward of the other rows"}, {"next", "the reward of the next row"}, {"previous", "the reward of the row before"}, {"median other", "the median of the other rows"},
	{"twice mean", "the mean twice"}, {"minus mean", "the mean with the wrong sign: it is added"},
}

var spreads = []struct{ name, title string }{
	{"none", "nothing"}, {"std1", "the deviation with n − 1"}, {"std0", "the deviation with n"}, {"var1", "the variance with n − 1"}, {"var0", "the variance with n"},
	{"mad", "the mean absolute deviation"}, {"range", "the range"}, {"rms", "the root mean square"}, {"sem", "the standard error of the mean"}, {"count", "the number of rows"},
	{"mean", "the mean"}, {"max", "the largest magnitude"}, {"median ad", "the median absolute deviation"}, {"1/std1", "the inverse of the deviation: they are multiplied by it"},
	{"1/std0", "the inverse of the deviation with n: they are multiplied by it"}, {"std−", "the deviation with n + 1"}, {"√mad0", "the root of the mean absolute deviation"},
	{"√mad1", "the root of the mean absolute deviation with n − 1"},
	{"mean+std1", "the mean plus the deviation"}, {"mean+std0", "the mean plus the deviation with n"}, {"|mean|+std1", "the size of the mean plus the deviation"},
	{"between1", "the deviation of the means of the groups"}, {"between0", "the deviation of the means of the groups, with the number of groups"}, {"within", "the mean of the deviations of the groups"},
}

// foreignCentres and foreignSpreads are those that no estimator subtracts or divides by; where one does, a number of a group is as good as another.
var (
	foreignCentres = map[string]bool{"median": true, "lower median": true, "sum": true, "loo n": true, "loo n2": true, "loo times": true, "loo sum": true, "best other": true, "worst other": true, "median other": true, "next": true, "previous": true, "twice mean": true, "minus mean": true}
	foreignSpreads = map[string]bool{"range": true, "rms": true, "var1": true, "var0": true, "sem": true, "1/std1": true, "1/std0": true, "std−": true, "√mad0": true, "√mad1": true, "mean+std1": true, "mean+std0": true, "|mean|+std1": true, "between1": true, "between0": true}
)

// ofOthers is a number of the rows of a group beside its own, NaN where there are none.
func ofOthers(name string, x []float64, rows []int, own int) float64 {
	at := slices.Index(rows, own)
	if len(rows) < 2 || at < 0 {
		return math.NaN()
	}
	others := make([]float64, 0, len(rows))
	for _, i := range rows {
		if i != own {
			others = append(others, x[i])
		}
	}
	slices.Sort(others)
	switch name {
	case "best other":
		return others[len(others)-1]
	case "worst other":
		return others[0]
	case "median other":
		return (others[(len(others)-1)/2] + others[len(others)/2]) / 2
	}
	if name == "previous" {
		at += len(rows) - 2
	}
	return x[rows[(at+1)%len(rows)]]
}

func centreOf(name string, x []float64, rows []int, own int) float64 {
	n, sorted := float64(len(rows)), eachOf(len(rows), func(k int) float64 { return x[rows[k]] })
	sum := total(sorted)
	slices.Sort(sorted)
	switch name {
	case "mean":
		return sum / n
	case "loo":
		return (sum - x[own]) / (n - 1)
	case "median":
		return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
	case "lower median":
		return sorted[(len(sorted)-1)/2]
	case "max":
		return sorted[len(sorted)-1]
	case "min":
		return sorted[0]
	case "first":
		return x[rows[0]]
	case "last":
		return x[rows[len(rows)-1]]
	case "first half", "second half":
		part, half := rows[:len(rows)/2], 0.0
		if name == "second half" {
			part = rows[len(rows)/2:]
		}
		for _, i := range part {
			half += x[i] / float64(len(part))
		}
		return half
	case "sum":
		return sum
	case "loo n":
		return (sum - x[own]) / n
	case "loo n2":
		return sum / (n - 1)
	case "loo times":
		return (sum - x[own]) * (n - 1)
	case "loo sum":
		return sum - x[own]
	case "best other", "worst other", "median other", "next", "previous":
		return ofOthers(name, x, rows, own)
	case "twice mean":
		return 2 * sum / n
	case "minus mean":
		return -sum / n
	}
	return 0
}

func spreadOf(name string, x []float64, rows []int) float64 {
	n := float64(len(rows))
	mean := centreOf("mean", x, rows, 0)
	var square, moment, absolute, largest float64
	for _, i := range rows {
		d := x[i] - mean
		square += float64(d * d)
		moment += float64(x[i] * x[i])
		absolute += math.Abs(d)
		largest = max(largest, math.Abs(x[i]))
	}
	switch name {
	case "std1":
		return math.Sqrt(square / (n - 1))
	case "1/std1":
		return math.Sqrt((n - 1) / square)
	case "1/std0":
		return math.Sqrt(n / square)
	case "std−":
		return math.Sqrt(square / (n + 1))
	case "√mad0":
		return math.Sqrt(absolute / n)
	case "√mad1":
		return math.Sqrt(absolute / (n - 1))
	case "std0":
		return math.Sqrt(square / n)
	case "var1":
		return square / (n - 1)
	case "var0":
		return square / n
	case "mad":
		return absolute / n
	case "range":
		return centreOf("max", x, rows, 0) - centreOf("min", x, rows, 0)
	case "rms":
		return math.Sqrt(moment / n)
	case "norm":
		return math.Sqrt(moment)
	case "moment":
		return moment / n
	case "√std1":
		return math.Sqrt(math.Sqrt(square / (n - 1)))
	case "sem":
		return math.Sqrt(square/(n-1)) / math.Sqrt(n)
	case "count":
		return n
	case "mean":
		return mean
	case "mean+std1":
		return mean + math.Sqrt(square/(n-1))
	case "mean+std0":
		return mean + math.Sqrt(square/n)
	case "|mean|+std1":
		return math.Abs(mean) + math.Sqrt(square/(n-1))
	case "max":
		return largest
	case "median ad":
		m := centreOf("median", x, rows, 0)
		d := make([]float64, len(x))
		for _, i := range rows {
			d[i] = math.Abs(x[i] - m)
		}
		return centreOf("median", d, rows, 0)
	}
	return 1
}

// spreadOf is what the advantages of some rows are divided by: a statistic of the rows, or of all groups.
func (in *formInputs) spreadOf(name string, x []float64, rows []int) float64 {
	if name != "between1" && name != "between0" && name != "within" {
		return spreadOf(name, x, rows)
	}
	var means []float64
	var deviations float64
	for _, g := range in.groups {
		means = append(means, centreOf("mean", x, g, 0))
		deviations += spreadOf("std1", x, g) / float64(len(in.groups))
	}
	if name == "within" {
		return deviations
	}
	return spreadOf("std"+name[len(name)-1:], means, inOrder(len(means)))
}
