package rl

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func ExampleGroupAdvantage() {
	r := []float64{1, 0, 0, 1, 2, 2} // two prompts, of four samples and of two
	adv, err := GroupAdvantage(nil, r, []int{0, 0, 0, 0, 1, 1}, GroupOptions{Scale: ScaleGroupStd, DDof: 1, Eps: 1e-6})
	fmt.Printf("%.4f %v\n", adv, err)
	// Output: [0.8660 -0.8660 -0.8660 0.8660 0.0000 0.0000] <nil>
}

func TestGroups(t *testing.T) {
	for _, wrong := range []GroupOptions{{Center: 3}, {Center: -1}, {Scale: 4}, {ZeroStd: 3}, {Singleton: 4}, {DDof: 2}} {
		require.Panics(t, func() { GroupAdvantage(nil, []float64{1, 2}, nil, wrong) }, "%+v", wrong)
	}
	require.Equal(t, []int{0, 0, 0, 1, 1, 1}, GroupBlocks(6, 3))
	require.Equal(t, []int{0, 1, 0, 2}, GroupUIDs([]string{"b", "a", "b", ""}))
	require.Equal(t, []int{0, 1, 0, 2, 3}, GroupPrompts([][]int{{1, 256}, {1}, {1, 256}, {256, 1}, {}}))
	require.Panics(t, func() { GroupBlocks(7, 3) })
	require.Panics(t, func() { GroupAdvantage(nil, []float64{1, 2}, []int{0, 2}, GroupOptions{}) })
	require.Panics(t, func() { GroupAdvantage(nil, []float64{1, 2}, []int{0}, GroupOptions{}) })
}

// TestGroupRules has the options one by one on groups of hand.
func TestGroupRules(t *testing.T) {
	one, equal := []float64{.7}, []float64{.1, .1, .1}
	root := math.Sqrt(2)
	for _, c := range []struct {
		name string
		r    []float64
		o    GroupOptions
		want []float64
	}{
		{"mean", []float64{1, 3}, GroupOptions{}, []float64{-1, 1}},
		{"loo", []float64{1, 3}, GroupOptions{Center: CenterLOO}, []float64{-2, 2}},
		{"none", []float64{1, 3}, GroupOptions{Center: CenterNone}, []float64{1, 3}},
		{"ddof 0", []float64{1, 3}, GroupOptions{Scale: ScaleGroupStd}, []float64{-1, 1}},
		{"ddof 1", []float64{1, 3}, GroupOptions{Scale: ScaleGroupStd, DDof: 1}, []float64{-1 / root, 1 / root}},
		{"eps", []float64{1, 3}, GroupOptions{Scale: ScaleGroupStd, Eps: 1}, []float64{-.5, .5}},
		{"batch", []float64{1, 3}, GroupOptions{Scale: ScaleBatchStd, Eps: 1}, []float64{-.5, .5}},
		{"pair of others", []float64{1, 3}, GroupOptions{Center: CenterLOO, Scale: ScaleLOOStd, DDof: 1, ZeroStd: ZeroStdSkip}, []float64{-2, 2}},
		{"loo_std", []float64{0, 2, 4}, GroupOptions{Center: CenterLOO, Scale: ScaleLOOStd}, []float64{-3, 0, 3}},
		{"zero, exactly", equal, GroupOptions{Scale: ScaleGroupStd, Eps: 1e-8, ZeroStd: ZeroStdZero}, []float64{0, 0, 0}},
		{"zero, no eps", []float64{.5, .5}, GroupOptions{Scale: ScaleGroupStd, ZeroStd: ZeroStdSkip}, []float64{0, 0}},
		{"equal infinities", []float64{math.Inf(-1), math.Inf(-1)}, GroupOptions{ZeroStd: ZeroStdZero}, []float64{nan, nan}},
		{"equal beside NaN", []float64{.1, nan, .1, .1}, GroupOptions{Scale: ScaleGroupStd, Eps: 1e-8, ZeroStd: ZeroStdZero, SkipNaN: true}, []float64{0, 0, 0, 0}},
		{"one, zero", one, GroupOptions{Singleton: SingletonZero}, []float64{0}},
		{"one, raw", one, GroupOptions{Singleton: SingletonRaw}, []float64{.7}},
		{"one, raw, scaled", one, GroupOptions{Singleton: SingletonRaw, Scale: ScaleGroupStd, Eps: .4}, []float64{.5}},
		{"one, raw, only scaled", one, GroupOptions{Center: CenterNone, Singleton: SingletonRaw, Scale: ScaleGroupStd, Eps: .4}, []float64{.5}},
		{"one, raw, others' spread", one, GroupOptions{Center: CenterNone, Singleton: SingletonRaw, Scale: ScaleLOOStd, Eps: .4}, []float64{.5}},
		{"one, nan", one, GroupOptions{Singleton: SingletonNaN}, []float64{nan}},
		{"one, uncentred", one, GroupOptions{Center: CenterNone}, []float64{.7}},
		{"NaN spreads", []float64{1, nan, 3}, GroupOptions{}, []float64{nan, nan, nan}},
		{"NaN skipped", []float64{1, nan, 3}, GroupOptions{SkipNaN: true, Scale: ScaleGroupStd}, []float64{-1, 0, 1}},
		{"one of three scored", []float64{nan, nan, 3}, GroupOptions{SkipNaN: true, Singleton: SingletonZero, Scale: ScaleGroupStd, DDof: 1}, []float64{0, 0, 0}},
		{"none scored", []float64{nan, nan}, GroupOptions{SkipNaN: true, Scale: ScaleGroupStd, DDof: 1}, []float64{0, 0}},
	} {
		got, err := GroupAdvantage(nil, c.r, nil, c.o)
		require.NoError(t, err, c.name)
		require.NoError(t, off(got, c.want, 1e-15), c.name)
	}
	_, err := GroupAdvantage(nil, []float64{1, 2, 3}, []int{0, 0, 1}, GroupOptions{})
	require.ErrorIs(t, err, ErrGroupOfOne)
	_, err = GroupAdvantage(nil, []float64{1, nan}, nil, GroupOptions{SkipNaN: true})
	require.ErrorIs(t, err, ErrGroupOfOne)
	last, err := GroupAdvantage(nil, []float64{1, 3}, []int{1, 1}, GroupOptions{})
	require.NoError(t, err)
	require.Equal(t, []float64{-1, 1}, last)
	// one scored sample beside two: raw, and then whitened with the batch of 3, −2 and 2
	beside, err := GroupAdvantage(nil, []float64{3, nan, 1, 5}, GroupBlocks(4, 2),
		GroupOptions{Scale: ScaleBatchStd, BatchCentred: true, ZeroStd: ZeroStdZero, Singleton: SingletonRaw, SkipNaN: true})
	require.NoError(t, err)
	sigma := math.Sqrt(14. / 3)
	require.NoError(t, off(beside, []float64{2 / sigma, 0, -3 / sigma, 1 / sigma}, 1e-15))
	// a reward that is not there does not count in the batch, though its group is all 0
	absent, err := GroupAdvantage(nil, []float64{nan, 1, 1, 2, 4, 6}, GroupBlocks(6, 3),
		GroupOptions{Scale: ScaleBatchStd, BatchCentred: true, ZeroStd: ZeroStdZero, SkipNaN: true})
	require.NoError(t, err)
	require.NoError(t, off(absent, []float64{0, 0, 0, -2 / math.Sqrt(8./5), 0, 2 / math.Sqrt(8./5)}, 1e-15))
	residue, err := GroupAdvantage(nil, equal, nil, GroupOptions{Scale: ScaleGroupStd, Eps: 1e-8})
	require.NoError(t, err)
	require.NotEqual(t, 0.0, residue[0], "the rounding of the mean that ZeroStdZero removes")
}

// TestGroupMLM has the worked groups of the masked-language-model system.
func TestGroupMLM(t *testing.T) {
	batch := GroupOptions{Scale: ScaleBatchStd, BatchCentred: true, DDof: 1, Eps: 1e-8, ZeroStd: ZeroStdZero}
	group := GroupOptions{Scale: ScaleGroupStd, DDof: 1, Eps: 1e-8, ZeroStd: ZeroStdZero}
	a := []float64{-1.161895, -.387298, .387298, 1.161895}
	two := []float64{.2, .4, .6, .8, .5, .5, .5, .5}
	for _, c := range []struct {
		r    []float64
		o    GroupOptions
		want []float64
	}{
		{two[:4], batch, a},
		{two, batch, []float64{-1.774824, -.591608, .591608, 1.774824, 0, 0, 0, 0}},
		{two, group, append(slices.Clone(a), 0, 0, 0, 0)},
		{two[4:], batch, []float64{0, 0, 0, 0}},
	} {
		got, err := GroupAdvantage(nil, c.r, GroupBlocks(len(c.r), 4), c.o)
		require.NoError(t, err)
		require.NoError(t, off(got, c.want, 1e-6))
		for k, w := range c.want {
			require.Equal(t, w == 0, got[k] == 0, "exactly 0")
		}
	}
}

// groupFunc is GroupAdvantage, or a wrong version of it.
type groupFunc func(r []float64, group []int, o GroupOptions) []float64

func rightGroup(r []float64, group []int, o GroupOptions) []float64 {
	adv, err := GroupAdvantage(nil, r, group, o)
	if err != nil {
		panic(err)
	}
	return adv
}

// groupLaws checks the laws of group advantages, and returns the first that f breaks. Every group has at least two samples
// that differ.
func groupLaws(f groupFunc, r []float64, group []int, size int) string {
	const tol = 1e-9
	std := GroupOptions{Scale: ScaleGroupStd, DDof: 1}
	loo := GroupOptions{Center: CenterLOO}
	groups := len(r) / size
	adv, rloo, centred := f(r, group, std), f(r, group, loo), f(r, group, GroupOptions{})

	sum, squares, n := make([]float64, groups), make([]float64, groups), make([]float64, groups)
	for i, g := range group {
		sum[g] += adv[i]
		squares[g] += adv[i] * adv[i]
		n[g]++
	}
	for g := range groups {
		k := n[g]
		if !(math.Abs(sum[g]) <= tol) || !(math.Abs(squares[g]-(k-1)) <= tol) {
			return "mean 0 and deviation 1 in each group"
		}
	}
	shifted, scaled, negated := make([]float64, len(r)), make([]float64, len(r)), make([]float64, len(r))
	for i, v := range r {
		shifted[i], scaled[i], negated[i] = v+float64(group[i])*2-3, 4*v, -v
		k := n[group[i]]
		if !(math.Abs(adv[i]) <= (k-1)/math.Sqrt(k)+tol) {
			return "bound (n−1)/√n"
		}
		if !(math.Abs(rloo[i]-k/(k-1)*centred[i]) <= tol) {
			return "RLOO = n/(n−1)·(r − mean)"
		}
	}
	if off(f(shifted, group, std), adv, tol) != nil {
		return "shift of a group"
	}
	if !sameBits(f(scaled, group, std), adv) {
		return "scale 4 without ε"
	}
	for i, a := range f(negated, group, std) {
		if a != -adv[i] {
			return "scale −1"
		}
	}
	clear(squares)
	for i, a := range f(r, group, GroupOptions{Scale: ScaleGroupStd}) {
		if !(math.Abs(a) <= math.Sqrt(n[group[i]]-1)+tol) {
			return "bound √(n−1) for ddof 0"
		}
		squares[group[i]] += a * a
	}
	for g := range groups {
		if !(math.Abs(squares[g]-n[g]) <= tol) {
			return "deviation 1 for ddof 0"
		}
	}
	// another group's rewards do not matter, nor do rewards that could not be scored
	other, extra, extraGroup := slices.Clone(r), append(slices.Clone(r), nan), append(slices.Clone(group), 0)
	for i, g := range group {
		if g != 0 {
			other[i] = 100 * float64(i)
		}
	}
	changed := f(other, group, std)
	skip := std
	skip.SkipNaN = true
	with := f(extra, extraGroup, skip)
	for i, g := range group {
		if g == 0 && changed[i] != adv[i] {
			return "groups are apart"
		}
		if !(math.Abs(with[i]-adv[i]) <= tol) {
			return "NaN is left out"
		}
	}
	if with[len(r)] != 0 {
		return "NaN has advantage 0"
	}
	return ""
}

// drawGroups draws rewards of groups of the given size in shuffled order.
func drawGroups(t *rapid.T) (r []float64, group []int, size int) {
	size = rapid.IntRange(2, 5).Draw(t, "size")
	groups := rapid.IntRange(1, 4).Draw(t, "groups")
	group = rapid.Permutation(GroupBlocks(size*groups, size)).Draw(t, "group")
	r = drawCells(t, "r", len(group))
	for i := range r {
		r[i] += float64(i) * 10 // no two alike
	}
	return r, group, size
}

func TestGroupLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r, group, size := drawGroups(t)
		if law := groupLaws(rightGroup, r, group, size); law != "" {
			t.Fatal(law)
		}
		perm := rapid.Permutation(GroupBlocks(len(r), 1)).Draw(t, "perm")
		pr, pg := make([]float64, len(r)), make([]int, len(r))
		for i, p := range perm {
			pr[i], pg[i] = r[p], group[p]
		}
		o := GroupOptions{Scale: Scale(rapid.IntRange(0, 3).Draw(t, "scale")), Center: Center(rapid.IntRange(0, 2).Draw(t, "center")), Eps: 1e-6}
		adv, padv := rightGroup(r, group, o), rightGroup(pr, pg, o)
		for i, p := range perm {
			if !(math.Abs(padv[i]-adv[p]) <= 1e-7) {
				t.Fatalf("permutation: %v and %v", padv[i], adv[p])
			}
		}
		in := slices.Clone(r)
		if got, err := GroupAdvantage(in, in, group, o); err != nil || !sameBits(got, adv) {
			t.Fatal("in place")
		}
	})
}

func TestGroupLawsReject(t *testing.T) {
	change := func(f func(o *GroupOptions)) groupFunc {
		return func(r []float64, group []int, o GroupOptions) []float64 {
			f(&o)
			return rightGroup(r, group, o)
		}
	}
	faults := map[string]groupFunc{
		"ddof 0":            change(func(o *GroupOptions) { o.DDof = 0 }),
		"ddof 1":            change(func(o *GroupOptions) { o.DDof = 1 }),
		"ε":                 change(func(o *GroupOptions) { o.Eps = 1e-4 }),
		"batch deviation":   change(func(o *GroupOptions) { o.Scale = min(o.Scale*2, ScaleBatchStd) }),
		"others' deviation": change(func(o *GroupOptions) { o.Scale = min(o.Scale*3, ScaleLOOStd) }),
		"mean for loo":      change(func(o *GroupOptions) { o.Center = CenterMean }),
		"loo for mean":      change(func(o *GroupOptions) { o.Center = CenterLOO }),
		"not centred":       change(func(o *GroupOptions) { o.Center = CenterNone }),
		"NaN spreads":       change(func(o *GroupOptions) { o.SkipNaN = false }),
		"stride, not id":    func(r []float64, group []int, o GroupOptions) []float64 { return rightGroup(r, strides(len(r)), o) },
		"one group of all":  func(r []float64, group []int, o GroupOptions) []float64 { return rightGroup(r, nil, o) },
		"no groups": func(r []float64, group []int, o GroupOptions) []float64 {
			o.Singleton = SingletonZero
			return rightGroup(r, GroupBlocks(len(r), 1), o)
		},
	}
	r, group := []float64{1, 5, 2, 9, 4, 7.5}, []int{0, 1, 0, 1, 0, 1}
	require.Empty(t, groupLaws(rightGroup, r, group, 3))
	for name, f := range faults {
		require.NotEmpty(t, groupLaws(f, r, group, 3), name)
	}
}

// strides puts neighbours into groups of three.
func strides(n int) []int {
	group := make([]int, n)
	for i := range group {
		group[i] = i / 3
	}
	return group
}

func TestMultiReward(t *testing.T) {
	reward := []float64{1, 10, nan, 20, nan, nan, 2, nan}
	got := WeightedReward(nil, reward, []float64{1, .5}, 4)
	require.NoError(t, off(got, []float64{6, 10, nan, 2}, 0))

	// two functions on scales of 1 and 1000 count alike under GDPO, and not under the sum
	two := []float64{0, 0, 1, 1000, 0, 1000, 1, 0}
	o := GroupOptions{Scale: ScaleGroupStd, DDof: 1, Eps: 1e-9, Singleton: SingletonZero}
	gdpo, err := MultiAdvantage(nil, two, []float64{1, 1}, nil, NormalizeThenSum, o)
	require.NoError(t, err)
	require.NoError(t, off(gdpo, []float64{-math.Sqrt(1.5), math.Sqrt(1.5), 0, 0}, 1e-8))
	sum, err := MultiAdvantage(nil, two, []float64{1, 1}, nil, SumThenNormalize, o)
	require.NoError(t, err)
	require.Greater(t, sum[2], .8)
	alone, err := GroupAdvantage(nil, WeightedReward(nil, two, []float64{1, 1}, 4), nil, o)
	require.NoError(t, err)
	require.Equal(t, alone, sum)
	o.Singleton = SingletonError
	_, err = MultiAdvantage(nil, two, []float64{1, 1}, []int{0, 1, 2, 3}, NormalizeThenSum, o)
	require.ErrorIs(t, err, ErrGroupOfOne)
}
