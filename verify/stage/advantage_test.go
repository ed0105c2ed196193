package stage

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/tol"
)

// std32 is the standard deviation in float32: in two passes, as masked functions have it, or updated element by element
// (Welford), as torch.std has it.
func std32(r *rand.Rand, x []float32, ddof float32) float32 {
	n := float32(len(x))
	if r.IntN(2) == 0 {
		var mean, m2 float32
		for i, v := range x {
			d := v - mean
			mean += d / float32(i+1)
			m2 += d * (v - mean)
		}
		return float32(math.Sqrt(float64(m2 / (n - ddof))))
	}
	sum := sums32(r)
	mean := sum(x) / n
	squares := make([]float32, len(x))
	for i, v := range x {
		squares[i] = (v - mean) * (v - mean)
	}
	return float32(math.Sqrt(float64(sum(squares) / (n - ddof))))
}

// onePass32 is √(E[x²] − μ²), with the factor n/(n − 1).
func onePass32(x []float32) float32 {
	var sum, squares float32
	for _, v := range x {
		sum += v
		squares += v * v
	}
	n := float32(len(x))
	if n < 2 {
		return 0
	}
	mean := sum / n
	return float32(math.Sqrt(float64(max(squares/n-mean*mean, 0) * (n / (n - 1)))))
}

// group32 is the advantage within one group in float32. loo has three forms: r − (Σ − r)/(n−1), n/(n−1)·(r − μ), and verl's
// r·n/(n−1) − μ·n/(n−1).
func group32(r *rand.Rand, x, all []float32, center, scale string, ddof, eps float32, skip bool) []float32 {
	sum, n := sums32(r)(x), float32(len(x))
	mean := sum / n
	std := std32(r, x, ddof)
	if scale == "batch_std" {
		std = std32(r, all, ddof)
	}
	form := r.IntN(3)
	a := make([]float32, len(x))
	for i, v := range x {
		c := v
		switch {
		case center == "mean":
			c = v - mean
		case center == "loo" && form == 0:
			c = v - (sum-v)/(n-1)
		case center == "loo" && form == 1:
			c = n / (n - 1) * (v - mean)
		case center == "loo":
			c = v*(n/(n-1)) - mean*(n/(n-1))
		}
		s := std
		if scale == "loo_std" {
			s = onePass32(append(append([]float32(nil), x[:i]...), x[i+1:]...))
		}
		if scale == "none" || skip && s == 0 {
			a[i] = c
		} else {
			a[i] = c / (s + eps)
		}
	}
	return a
}

// groupBatch returns a batch of groups, their rows shuffled, with scores.
func groupBatch(r *rand.Rand, draw func(*rand.Rand) float64, groups, size int) (grid, [][]int) {
	rows := groups * size
	lengths := make([]int, rows)
	for i := range lengths {
		lengths[i] = 1 + r.IntN(4)
	}
	g := newGrid(4, lengths...)
	id := make([]float64, rows)
	members := make([][]int, groups)
	for k, i := range r.Perm(rows) {
		id[i] = float64(10 + k/size)
		members[k/size] = append(members[k/size], i)
	}
	g.row("group_id", id...)
	g.fill("scores", dump.PerRow, func() float64 { return draw(r) })
	return g, members
}

// advise puts the advantages of group32 into the batch, per row or per token.
func (g grid) advise(members [][]int, perToken bool, f func(x []float32) []float32) grid {
	x := narrow(g.Row("scores"))
	rows := make([]float64, g.Rows)
	for _, ids := range members {
		var own []float32
		for _, i := range ids {
			own = append(own, x[i])
		}
		for k, a := range f(own) {
			rows[ids[k]] = float64(a)
		}
	}
	if !perToken {
		return g.row("advantages", rows...)
	}
	all := make([]float64, len(g.Mask))
	for i := range all {
		if all[i] = 99; g.Mask[i] {
			all[i] = rows[i/g.Cols]
		}
	}
	return g.token("advantages", all...)
}

const plainGroup = "adv.kind=group kl.place=loss whiten.scope=none adv.std_of=rewards adv.multi=sum_then_normalize "

func TestGroupAdvantageBound(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 1))
	w := worst{}
	for _, family := range sorted(statFamilies) {
		draw := statFamilies[family]
		for _, center := range []string{"mean", "loo", "none"} {
			for _, scale := range []string{"none", "group_std", "batch_std", "loo_std"} {
				for _, eps := range []string{"1e-4", "1e-6"} {
					skip := scale == "loo_std"
					zero := "divide_eps"
					if skip {
						zero = "skip"
					}
					s := set(t, plainGroup+"adv.ddof=1 adv.singleton=error adv.eps="+eps+" adv.center="+center+" adv.scale="+scale+" adv.zero_std="+zero)
					e := f32(s.Value("adv.eps").Num())
					for range 20 {
						g, members := groupBatch(r, draw, 1+r.IntN(3), 2+r.IntN(12))
						all := narrow(g.Row("scores"))
						g.advise(members, r.IntN(2) == 0, func(x []float32) []float32 {
							return group32(r, x, all, center, scale, 1, e, skip)
						})
						w.add(t, family+" "+scale, "advantage/group", g.Batch, s)
					}
				}
			}
		}
	}
	w.tight(t)
}

func TestGroupAdvantageFindsFaults(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 2))
	s := set(t, plainGroup+"adv.center=mean adv.scale=group_std adv.ddof=1 adv.eps=1e-4 adv.zero_std=divide_eps adv.singleton=error")
	g, members := groupBatch(r, statFamilies["normal"], 3, 8)
	all := narrow(g.Row("scores"))
	for _, perToken := range []bool{false, true} {
		at := func(ids [][]int, center, scale string, ddof, eps float32) *dump.Batch {
			return g.advise(ids, perToken, func(x []float32) []float32 { return group32(r, x, all, center, scale, ddof, eps, false) }).Batch
		}
		o := Judge(Find("advantage/group"), at(members, "mean", "group_std", 1, 1e-4), s)
		require.Equal(t, check.Pass, o.Verdict)
		require.Less(t, o.Tally.Resolution(), 5e-6)
		fails(t, "advantage/group", at(members, "mean", "group_std", 0, 1e-4), s)
		fails(t, "advantage/group", at(members, "mean", "group_std", 1, 1e-6), s)
		fails(t, "advantage/group", at(members, "loo", "group_std", 1, 1e-4), s)
		fails(t, "advantage/group", at(members, "mean", "batch_std", 1, 1e-4), s)
		fails(t, "advantage/group", at(members, "mean", "none", 1, 1e-4), s)
		stride := [][]int{{}, {}, {}}
		for i := range g.Rows {
			stride[i%3] = append(stride[i%3], i)
		}
		fails(t, "advantage/group", at(stride, "mean", "group_std", 1, 1e-4), s)
		b := at(members, "mean", "group_std", 1, 1e-4)
		b.Tensors["advantages"].Data[0] += 1e-5
		require.Equal(t, b.Mask[0], true)
		fails(t, "advantage/group", b, s)
		b.Tensors["advantages"].Data[0] = math.NaN()
		fails(t, "advantage/group", b, s)
	}
}

// A group of equal 0/1 rewards is decided under the smallest ε, and one of four; one of six times 0.95, whose mean is rounded, is not.
func TestConstantGroups(t *testing.T) {
	s := set(t, plainGroup+"adv.center=mean adv.scale=group_std adv.ddof=1 adv.eps=1e-6 adv.zero_std=divide_eps adv.singleton=error")
	g := newGrid(1, 1, 1, 1, 1).row("group_id", 0, 0, 0, 0).row("scores", 1, 1, 1, 1).row("advantages", 0, 0, 0, 0)
	require.Equal(t, check.Pass, Judge(Find("advantage/group"), g.Batch, s).Verdict)
	fails(t, "advantage/group", g.row("advantages", 0, 0, 0, 1e-3).Batch, s)
	x := float64(f32(0.95))
	fails(t, "advantage/group", g.row("scores", x, x, x, x).row("advantages", 0, 0, 0, 0.06).Batch, s)
	six := newGrid(1, 1, 1, 1, 1, 1, 1).row("group_id", 0, 0, 0, 0, 0, 0).row("scores", x, x, x, x, x, x).row("advantages", 0, 0, 0, 0, 0, 0.06)
	require.Equal(t, check.Undetermined, Judge(Find("advantage/group"), six.Batch, s).Verdict)
	zero := s.With("adv.zero_std", mustParse(t, "adv.zero_std", "zero"), "test")
	fails(t, "advantage/group", g.Batch, zero)

	// The others of [1, 1, 1, 0] have no spread, exactly: NeMo-RL does not divide.
	loo := set(t, plainGroup+"adv.center=loo adv.scale=loo_std adv.ddof=1 adv.eps=1e-6 adv.zero_std=skip adv.singleton=error")
	std := math.Sqrt(1. / 3)
	g.row("scores", 1, 1, 1, 0).row("advantages", (1./3)/(std+1e-6), (1./3)/(std+1e-6), (1./3)/(std+1e-6), -1)
	require.Equal(t, check.Pass, Judge(Find("advantage/group"), g.Batch, loo).Verdict)
	fails(t, "advantage/group", g.row("advantages", 1./3/std, 1./3/std, 1./3/std, -1e6).Batch, loo)
}

// The mean of equal rewards is off by whole steps of their grid, which tells what the sum of their roundings does not: every such group is
// decided, whatever the order of the sum.
func TestLevelGroups(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 5))
	off := 0
	for _, scale := range []string{"group_std", "none"} {
		s := set(t, plainGroup+"adv.center=mean adv.ddof=1 adv.eps=1e-4 adv.zero_std=divide_eps adv.singleton=error adv.scale="+scale)
		for range 300 {
			size := 2 + r.IntN(31)
			g, members := groupBatch(r, func(r *rand.Rand) float64 { return r.Float64() }, 2, size)
			scores, level := g.Row("scores"), float64(f32(4*r.Float64()))
			for _, i := range members[1] {
				scores[i] = level
			}
			g.row("scores", scores...).advise(members, false, func(x []float32) []float32 { return group32(r, x, nil, "mean", scale, 1, 1e-4, false) })
			o := Judge(Find("advantage/group"), g.Batch, s)
			require.Equal(t, check.Pass, o.Verdict, "%d of %g", size, level)
			require.Zero(t, o.Tally.Undetermined, "%d of %g", size, level)
			a := g.Row("advantages")
			at := members[1][0]
			if a[at] != 0 {
				off++
			}
			a[at] = 0.2
			fails(t, "advantage/group", g.row("advantages", a...).Batch, s)
		}
	}
	require.Greater(t, off, 50)
}

// OpenRLHF's token rewards are of the reward behind its baseline: those of a step wait for the others where groups lie across several.
func TestRewardsOfGroupsOverSteps(t *testing.T) {
	s := set(t, plainGroup+"adv.center=mean adv.scale=none kl.place=sequence_reward_after kl.beta=0 score.index=last_response reward.clip=none eos.rule=none")
	g := newGrid(1, 1, 1).row("group_id", 5, 7).row("scores", 1, 0).token("token_rewards", .5, -.5)
	over := Judge(Find("reward/token"), g.Batch, s.WithFact("num_generations", 2.0).WithFact("num_mini_batches", 2.0))
	require.Equal(t, check.Undetermined, over.Verdict)
	require.True(t, LacksSteps(over), over.Lacking())
	one := Judge(Find("reward/token"), g.Batch, s.WithFact("num_generations", 2.0))
	require.Equal(t, check.Undetermined, one.Verdict)
	require.False(t, LacksSteps(one), one.Lacking())
}

func TestGroupsThatAreNotWhole(t *testing.T) {
	s := set(t, plainGroup+"adv.center=mean adv.scale=none")
	g := newGrid(1, 1, 1, 1, 1).row("group_id", 5, 5, 7, 7).row("scores", 1, 0, 1, 0).row("advantages", .5, -.5, 9, 9)
	fails(t, "advantage/group", g.Batch, s)
	g.row("group_id", 5, 5, 5, 7).row("scores", 1, 0, .5, 1).row("advantages", .5, -.5, 0, 9)
	o := Judge(Find("advantage/group"), g.Batch, s.WithFact("num_generations", 3.0))
	require.Equal(t, check.Pass, o.Verdict, "the group of one of three is not judged")
	require.Equal(t, 3, o.Tally.N+o.Exact)
	g.Missing = []string{"micro-batch 1"}
	lacks(t, "advantage/group", g.Batch, s, "a complete group")
	require.Equal(t, check.Pass, Judge(Find("advantage/group"), g.Batch, s.WithFact("num_generations", 3.0)).Verdict)
	batch := set(t, plainGroup+"adv.center=mean adv.scale=batch_std adv.ddof=1 adv.eps=0 adv.zero_std=divide_eps").WithFact("num_generations", 3.0)
	lacks(t, "advantage/group", g.Batch, batch, "all files of the step")
	g.Missing = nil
	lacks(t, "advantage/group", g.Without("group_id"), s, "group_id")
	// A group of one, where groups are whole.
	for rule, a := range map[string]float64{"zero": 0, "raw": 1, "nan": math.NaN()} {
		g.row("advantages", .5, -.5, 0, a)
		one := s.With("adv.singleton", mustParse(t, "adv.singleton", rule), "test")
		require.Equal(t, check.Pass, Judge(Find("advantage/group"), g.Batch, one).Verdict, rule)
	}
	lacks(t, "advantage/group", g.Batch, s.With("adv.singleton", mustParse(t, "adv.singleton", "error"), "test"), "raises an exception")
}

// Without group_id, blocks of num_generations rows, unless the prompts say that the rows were shuffled.
func TestGroupsWithoutID(t *testing.T) {
	s := set(t, plainGroup+"adv.center=mean adv.scale=none adv.group_by=contiguous_blocks").WithFact("num_generations", 2.0)
	g := newGrid(1, 1, 1, 1, 1).row("scores", 1, 0, 1, 0).row("advantages", .5, -.5, .5, -.5)
	require.Equal(t, check.Pass, Judge(Find("advantage/group"), g.Batch, s).Verdict)
	g.Files[0].PromptCols = 1
	g.row("input_ids", 3, 0, 4, 0, 4, 0, 3, 0).row("attention_mask", 1, 1, 1, 1, 1, 1, 1, 1) // rows 0 and 3, 1 and 2
	g.row("scores", 1, 2, 0, 0).row("advantages", .5, 1, -1, -.5)
	require.Equal(t, check.Pass, Judge(Find("advantage/group"), g.Batch, s).Verdict)
}

// Where neither group_id nor prompts are there, advantages that do not sum to 0 in blocks say nothing of them.
func TestGroupsOfShuffledRows(t *testing.T) {
	s := set(t, plainGroup+"adv.center=mean adv.scale=none adv.group_by=contiguous_blocks").WithFact("num_generations", 2.0)
	g := newGrid(1, 1, 1, 1, 1).row("scores", 1, 2, 0, 0).row("advantages", .5, 1, -1, -.5)
	o := Judge(Find("advantage/group"), g.Batch, s)
	require.Equal(t, check.Fail, o.Verdict)
	require.True(t, BlocksUnsure(o))
	halved := Judge(Find("advantage/group"), g.row("advantages", -.25, .25, 0, 0).Batch, s)
	require.Equal(t, check.Fail, halved.Verdict)
	require.False(t, BlocksUnsure(halved), "the blocks are groups")
	require.False(t, BlocksUnsure(Judge(Find("advantage/group"), g.row("group_id", 0, 0, 1, 1).row("advantages", .5, 1, -1, -.5).Batch, s)))
}

// A reward that is NaN is left out, and gets the advantage 0.
func TestGroupWithNaNReward(t *testing.T) {
	s := set(t, plainGroup+"adv.center=mean adv.scale=none adv.singleton=zero")
	g := newGrid(1, 1, 1, 1).row("group_id", 0, 0, 0).row("scores", 1, math.NaN(), 0).row("advantages", .5, 0, -.5)
	require.Equal(t, check.Pass, Judge(Find("advantage/group"), g.Batch, s).Verdict)
	fails(t, "advantage/group", g.row("advantages", math.NaN(), math.NaN(), math.NaN()).Batch, s)
}

// The leave-one-out baseline of the only row that could be scored is 0/0: mean and deviation of the batch leave it out, and it is 0 behind them.
func TestOnlyScoredRowOfNormalisedLeaveOneOut(t *testing.T) {
	s := set(t, plainGroup+"adv.center=loo adv.scale=batch_std adv.std_of=centred adv.ddof=1 adv.eps=1e-4 adv.zero_std=divide_eps adv.singleton=zero adv.group_by=contiguous_blocks")
	g := newGrid(1, 1, 1, 1, 1).row("group_id", 0, 0, 1, 1).row("scores", 1, 0, 2, math.NaN())
	a := 1 / (math.Sqrt2 + 1e-4)
	require.Equal(t, check.Pass, Judge(Find("advantage/group"), g.row("advantages", a, -a, 0, 0).Batch, s).Verdict)
	b := 1 / (1 + 1e-4) // of 1, −1 and a 0 that counts
	fails(t, "advantage/group", g.row("advantages", b, -b, 0, 0).Batch, s)
}

func TestOtherOutcomeEstimators(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 3))
	w := worst{}
	for _, family := range sorted(statFamilies) {
		draw := statFamilies[family]
		for range 100 {
			g, members := groupBatch(r, draw, 2, 2+r.IntN(6))
			x := narrow(g.Row("scores"))
			length := make([]float32, g.Rows)
			for i, m := range g.Mask {
				if m {
					length[i/g.Cols]++
				}
			}
			put := func(f func(ids []int) []float32) {
				rows := make([]float64, g.Rows)
				for _, ids := range members {
					for k, a := range f(ids) {
						rows[ids[k]] = float64(a)
					}
				}
				g.row("advantages", rows...)
			}
			put(func(ids []int) []float32 {
				var num, den []float32
				for _, i := range ids {
					num, den = append(num, length[i]*x[i]), append(den, length[i])
				}
				base := sums32(r)(num) / sums32(r)(den)
				var a []float32
				for _, i := range ids {
					a = append(a, x[i]-base)
				}
				return a
			})
			w.add(t, family+" opo", "advantage/group", g.Batch, set(t, "adv.kind=opo kl.place=loss whiten.scope=none"))
			put(func(ids []int) []float32 {
				best, second := ids[0], f32(math.Inf(-1))
				var own []float32
				for _, i := range ids {
					own = append(own, x[i])
					if x[i] > x[best] {
						best = i
					}
				}
				for _, i := range ids {
					if i != best {
						second = max(second, x[i])
					}
				}
				a := make([]float32, len(ids))
				for k, i := range ids {
					if i == best {
						a[k] = (x[best] - second) / (std32(r, own, 1) + 1e-4)
					}
				}
				return a
			})
			if family != "constant" { // which of equal rewards is the best is for the order to say; all get 0
				w.add(t, family+" passk", "advantage/group", g.Batch, set(t, "adv.kind=passk adv.scale=group_std adv.eps=1e-4 kl.place=loss whiten.scope=none"))
			}
			nonzero := float32(0)
			for _, v := range x {
				if v != 0 {
					nonzero++
				}
			}
			put(func(ids []int) []float32 {
				var own, a []float32
				for _, i := range ids {
					own = append(own, x[i])
				}
				mean := sums32(r)(own) / float32(len(own))
				for _, v := range own {
					a = append(a, float32(len(x))/max(nonzero, 1)*(v-mean))
				}
				return a
			})
			w.add(t, family+" gpg", "advantage/group", g.Batch, set(t, "adv.kind=gpg kl.place=loss whiten.scope=none"))
		}
	}
	w.tight(t)
}

// KL in the reward of a sequence: inside the baseline (RLOO), and after it (OpenRLHF).
func TestKLInSequenceReward(t *testing.T) {
	g := newGrid(2, 2, 2).row("group_id", 0, 0).row("scores", 3, 1).token("kl", .5, .25, 0, .5)
	s := set(t, "adv.kind=group adv.center=mean adv.scale=none whiten.scope=none reward.clip=none kl.beta=2 kl.place=sequence_reward_before_baseline")
	g.row("advantages", .75, -.75) // rewards 1.5, 0
	require.Equal(t, check.Pass, Judge(Find("advantage/group"), g.Batch, s).Verdict)
	fails(t, "advantage/group", g.row("advantages", 1, -1).Batch, s)
	clipped := s.With("reward.clip", mustParse(t, "reward.clip", "before_baseline"), "test").With("reward.clip_range", mustParse(t, "reward.clip_range", "-2,2"), "test")
	g.row("advantages", .25, -.25) // rewards 2 − 1.5, 1 − 1
	require.Equal(t, check.Pass, Judge(Find("advantage/group"), g.Batch, clipped).Verdict)

	after := s.With("kl.place", mustParse(t, "kl.place", "sequence_reward_after"), "test").With("gae.gamma", mustParse(t, "gae.gamma", "–"), "test")
	g.token("advantages", 1-2*.75, 1-2*.25, -1-2*.5, -1-2*.5)
	require.Equal(t, check.Pass, Judge(Find("advantage/group"), g.Batch, after).Verdict)
	fails(t, "advantage/group", g.token("advantages", 1, 1, -1, -1).Batch, after)
	lacks(t, "advantage/group", g.row("advantages", 1, -1).Batch, after, "advantages per token")
	// Token rewards hold the normalised score at the last token.
	after = after.With("score.index", mustParse(t, "score.index", "last_response"), "test")
	g.token("token_rewards", -1, 1-.5, 0, -1-1)
	require.Equal(t, check.Pass, Judge(Find("reward/token"), g.Batch, after).Verdict)

	// verl sums token rewards, which hold the KL.
	token := s.With("kl.place", mustParse(t, "kl.place", "token_reward"), "test")
	g.row("advantages", .75+.25, -.75-.25).token("token_rewards", 0, 2, -1, 1)
	require.Equal(t, check.Pass, Judge(Find("advantage/group"), g.Batch, token).Verdict)
}

// Of k equal rewards of 1 each is its own baseline, exactly where k·(1/k) and (k − 1)·(1/(k − 1)) are 1 in float32 and float64, whether a program
// divides or multiplies; of 50 they are not: 49·(1/49) is not 1 in float64.
func TestEqualRewardsLeaveNothing(t *testing.T) {
	s := set(t, plainGroup+"adv.center=loo adv.scale=none adv.zero_std=divide_eps adv.singleton=error")
	for k, exact := range map[int]bool{2: true, 3: true, 4: true, 5: true, 8: true, 50: false} {
		g := newGrid(1, slices.Repeat([]int{1}, k)...)
		g.row("group_id", make([]float64, k)...).row("scores", slices.Repeat([]float64{1}, k)...).row("advantages", make([]float64, k)...)
		o := Judge(Find("advantage/group"), g.Batch, s)
		require.Equal(t, check.Pass, o.Verdict)
		require.Equal(t, exact, o.Pred.Bound[0] == 0, "%d rewards", k)
	}
}

// A KL that is taken off the advantage of its token is off by the rounding of β and of the product, also where the advantage cancels it.
func TestBoundHoldsTheRoundingOfBeta(t *testing.T) {
	const beta = 0.1
	r := rand.New(rand.NewPCG(4, 9))
	s := set(t, "adv.kind=group adv.center=none adv.scale=none whiten.scope=none reward.clip=none kl.beta=0.1 kl.place=sequence_reward_after gae.gamma=–")
	far := 0
	for range 200 {
		kl := float32(1 + r.Float64())
		off := f32(beta) * kl
		g := newGrid(1, 1).row("group_id", 0).row("scores", float64(off)).token("kl", float64(kl)).token("advantages", 0)
		require.Equal(t, check.Pass, Judge(Find("advantage/group"), g.Batch, s).Verdict, kl)
		if math.Abs(float64(off)-beta*float64(kl)) > tol.U32*beta*float64(kl) {
			far++
		}
	}
	require.Greater(t, far, 3)
}

// The ε of a denominator is read off the advantages.
func TestEpsilonThatAdvantagesGive(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 3))
	s := set(t, plainGroup+"adv.center=mean adv.scale=group_std adv.ddof=1 adv.eps=1e-4 adv.zero_std=divide_eps adv.singleton=error")
	g, members := groupBatch(r, statFamilies["normal"], 3, 8)
	all := narrow(g.Row("scores"))
	for _, eps := range []float32{0.03, 0.5} {
		b := g.advise(members, false, func(x []float32) []float32 { return group32(r, x, all, "mean", "group_std", 1, eps, false) }).Batch
		got := newSearch(Find("advantage/group"), b).impliedEps(s)
		require.NotEmpty(t, got)
		require.InEpsilon(t, eps, got[0], 2e-2)
	}
}
