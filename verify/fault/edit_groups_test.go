package fault_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/fault"
	"plumbline/verify/stage"
)

// grouped returns rows of groups that were permuted, with the advantages that a program makes of scores and groups.
func grouped(sizes []int, advantages func(scores, id []float64) []float64) *dump.Batch {
	r := rand.New(rand.NewPCG(5, 8))
	var id []float64
	for g, n := range sizes {
		for range n {
			id = append(id, float64(g))
		}
	}
	r.Shuffle(len(id), func(i, j int) { id[i], id[j] = id[j], id[i] })
	rows := len(id)
	scores := make([]float64, rows)
	for i := range scores {
		scores[i] = float64(float32(r.NormFloat64()))
	}
	adv := advantages(scores, id)
	for i := range adv {
		adv[i] = float64(float32(adv[i]))
	}
	b := &dump.Batch{Rows: rows, Cols: 1, Mask: make([]bool, rows), Tensors: map[string]*dump.Tensor{}, Origin: make([]dump.Origin, rows), Files: []dump.FileInfo{{Hi: rows, Cols: 1}}}
	b.Meta.MicroBatches, b.Meta.WorldSize = 1, 1
	for i := range b.Mask {
		b.Mask[i] = true
	}
	for name, x := range map[string][]float64{"scores": scores, "group_id": id, "advantages": adv} {
		b.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerRow, Width: 1, Shape: []int{rows}, Data: x, Type: format.F32}
	}
	return b
}

// normalised are (r − baseline)/(s + 1e-6), s with n − 1, where baseline is the mean or that of the others with a count.
func normalised(r, id []float64, loo float64) []float64 {
	out := make([]float64, len(r))
	for i := range r {
		var sum, square, n float64
		for j := range r {
			if id[j] == id[i] {
				sum, n = sum+r[j], n+1
			}
		}
		for j := range r {
			if id[j] == id[i] {
				square += (r[j] - sum/n) * (r[j] - sum/n)
			}
		}
		base := sum / n
		if loo > 0 {
			base = (sum - r[i]) / loo
		}
		out[i] = (r[i] - base) / (math.Sqrt(square/(n-1)) + 1e-6)
	}
	return out
}

func groupSet(t *testing.T, more ...string) *convention.Set {
	t.Helper()
	p, _, err := convention.Lookup("trl-grpo@1.16")
	require.NoError(t, err)
	set := convention.FromProfile(p)
	list := append([]string{"adv.kind", "group", "adv.center", "mean", "adv.scale", "group_std", "adv.ddof", "1", "adv.eps", "1e-6"}, more...)
	for i := 0; i < len(list); i += 2 {
		v, err := convention.Parse(list[i], list[i+1])
		require.NoError(t, err)
		set = set.With(list[i], v, "test")
	}
	return set
}

func requireFirst(t *testing.T, o *stage.Outcome, id, words string) {
	t.Helper()
	require.Equal(t, check.Fail, o.Verdict, o.Lacking())
	found := fault.Explain(o)
	require.NotEmpty(t, found)
	require.Equal(t, id, found[0].Hypothesis.ID, found[0].Hypothesis.Title)
	require.Contains(t, found[0].Hypothesis.Title, words)
	require.False(t, found[0].Lead)
}

// placed returns the group of every place.
func placed(n int, of func(i int) int) (id []float64) {
	for i := range n {
		id = append(id, float64(of(i)))
	}
	return id
}

// Groups that were cut by the places of rows after these were permuted are found in the advantages themselves.
func TestGroupsByPlace(t *testing.T) {
	set, c := groupSet(t), stage.Find("advantage/group")
	sizes := []int{4, 4, 4, 4, 4, 4}
	require.Equal(t, check.Pass, stage.Judge(c, grouped(sizes, func(r, id []float64) []float64 { return normalised(r, id, 0) }), set).Verdict)
	for _, n := range []int{4, 3, 6} {
		b := grouped(sizes, func(r, _ []float64) []float64 {
			place := make([]float64, len(r))
			for i := range place {
				place[i] = float64((i * 5 % len(r)) / n) // as the rows stood elsewhere
			}
			return normalised(r, place, 0)
		})
		requireFirst(t, stage.Judge(c, b, set), "ADV-WRONG-GROUPS", "")
	}
	b := grouped(sizes, func(r, _ []float64) []float64 {
		return normalised(r, placed(len(r), func(i int) int { return i / len(sizes) }), 0)
	})
	requireFirst(t, stage.Judge(c, b, set), "ADV-GROUPS-BY-POSITION", "the sides of the reshape")
	b = grouped(sizes, func(r, _ []float64) []float64 {
		return normalised(r, placed(len(r), func(i int) int { return (i%12*2 + i/12) / 4 }), 0)
	})
	b.Files, b.Meta.WorldSize = []dump.FileInfo{{Hi: 12, Cols: 1}, {Rank: 1, Lo: 12, Hi: 24, Cols: 1}}, 2
	for i := range b.Origin {
		b.Origin[i].File = i / 12
	}
	requireFirst(t, stage.Judge(c, b, set), "ADV-GROUPS-BY-POSITION", "dealt out to the ranks")
	noise := rand.New(rand.NewPCG(6, 6))
	b = grouped(sizes, func(r, _ []float64) []float64 {
		x := make([]float64, len(r))
		for i := range x {
			x[i] = noise.NormFloat64()
		}
		return x
	})
	for _, e := range fault.Explain(stage.Judge(c, b, set)) {
		require.True(t, e.Lead, e.Hypothesis.Title)
	}
}

// A leave-one-out baseline whose divisor is the count of another group.
func TestCountOfAnotherGroup(t *testing.T) {
	set := groupSet(t, "adv.center", "loo")
	b := grouped([]int{3, 5, 6, 4}, func(r, id []float64) []float64 { return normalised(r, id, 5) })
	requireFirst(t, stage.Judge(stage.Find("advantage/group"), b, set), "ADV-CENTER", "the largest group less 1")
}

// Scores that are held in a range one of whose ends is another one.
func TestOtherRange(t *testing.T) {
	set := groupSet(t, "reward.clip", "before_baseline", "reward.clip_range", "-0.8,0.8")
	b := grouped([]int{4, 4, 4, 4}, func(r, id []float64) []float64 {
		held := make([]float64, len(r))
		for i, x := range r {
			held[i] = max(-1, min(x, 0.8))
		}
		return normalised(held, id, 0)
	})
	requireFirst(t, stage.Judge(stage.Find("advantage/group"), b, set), "REWARD-CLIP-MISSING", "the lower bound is −1")
}

// A table of scores whose axes were exchanged gives answers the mean, the deviation or the advantage of others. The rows of a dump were permuted since; their ids
// tell their places.
func TestTablesOfScoresWithTheirAxesExchanged(t *testing.T) {
	const groups, size = 6, 4
	set, ch := groupSet(t), stage.Find("advantage/group")
	stats := func(r []float64) (m, s float64) {
		for _, x := range r {
			m += x / float64(len(r))
		}
		for _, x := range r {
			s += (x - m) * (x - m) / float64(len(r)-1)
		}
		return m, math.Sqrt(s) + 1e-6
	}
	of := func(program func(r []float64) []float64) *stage.Outcome {
		b := grouped([]int{size, size, size, size, size, size}, func(r, _ []float64) []float64 { return make([]float64, len(r)) })
		id, place, seen := b.Row("group_id"), make([]float64, groups*size), map[float64]int{}
		scores, at := make([]float64, groups*size), make([]int, groups*size)
		for i, g := range id {
			k := int(g)*size + seen[g]
			seen[g]++
			place[i], scores[k], at[k] = float64(k), b.Row("scores")[i], i
		}
		ids := *b.Tensors["group_id"]
		ids.Name, ids.Data = "sample_id", place
		b.Tensors["sample_id"] = &ids
		for k, a := range program(scores) {
			b.Tensors["advantages"].Data[at[k]] = float64(float32(a))
		}
		return stage.Judge(ch, b, set)
	}
	take := func(r []float64, from, step, n int) (x []float64) {
		for i := range n {
			x = append(x, r[from+i*step])
		}
		return x
	}
	by := func(mean, deviation func(r []float64, k int) []float64) func(r []float64) []float64 {
		return func(r []float64) (out []float64) {
			for k, x := range r {
				m, _ := stats(mean(r, k))
				_, s := stats(deviation(r, k))
				out = append(out, (x-m)/s)
			}
			return out
		}
	}
	own := func(r []float64, k int) []float64 { return take(r, k/size*size, 1, size) }
	repeated := func(r []float64, k int) []float64 { return take(r, k%groups*size, 1, size) }
	across := func(r []float64, k int) []float64 { return take(r, k/size, groups, size) }
	prompts := func(r []float64, k int) []float64 { return take(r, k%size, size, groups) }
	require.Equal(t, check.Pass, of(by(own, own)).Verdict)
	requireFirst(t, of(by(repeated, own)), "ADV-OTHER-GROUP", "the mean is that of another group")
	requireFirst(t, of(by(repeated, repeated)), "ADV-OTHER-GROUP", "mean and deviation")
	requireFirst(t, of(by(across, across)), "ADV-GROUPS-INTERLEAVED", "each given to the answers of one prompt")
	requireFirst(t, of(by(prompts, own)), "ADV-GROUPS-INTERLEAVED", "")
	requireFirst(t, of(func(r []float64) []float64 {
		a, out := by(own, own)(r), make([]float64, len(r))
		for k := range out {
			out[k] = a[k%groups*size+k/groups]
		}
		return out
	}), "ADV-ROWS-PERMUTED", "")
}

// Means or deviations of groups that are spread over rows in another order are found where the rows were shuffled, too.
func TestStatisticsOfGroupsDealtOtherwise(t *testing.T) {
	set, c := groupSet(t), stage.Find("advantage/group")
	for words, part := range map[string][2]int{"the mean of another group is": {1, 0}, "the deviation of another group": {0, 1}, "mean and deviation are those": {1, 1}} {
		b := grouped([]int{4, 4, 4, 4, 4}, func(r, id []float64) []float64 {
			mean, std, n := make([]float64, 5), make([]float64, 5), make([]int, 5)
			for i, g := range id {
				mean[int(g)] += r[i] / 4
			}
			for i, g := range id {
				std[int(g)] += (r[i] - mean[int(g)]) * (r[i] - mean[int(g)]) / 3
			}
			out := make([]float64, len(r))
			for i, g := range id { // repeated as a block: that of group k%5 for the k-th row
				own, other := int(g), (4*int(g)+n[int(g)])%5
				n[own]++
				of := [2]int{own, other}
				out[i] = (r[i] - mean[of[part[0]]]) / (math.Sqrt(std[of[part[1]]]) + 1e-6)
			}
			return out
		})
		requireFirst(t, stage.Judge(c, b, set), "ADV-OTHER-GROUP", words)
	}
}
