package trainer_test

import (
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/plant/trainer"
)

// random returns a configuration of a profile, with every kind of loss and advantage in turn.
func random(p *convention.Profile, seed uint64) trainer.Config {
	r := rand.New(rand.NewPCG(seed, 7))
	c := trainer.Config{
		Set: trainer.Complete(p, r), Seed: seed,
		Rows: 12 + 4*r.IntN(4), Cols: 8 + r.IntN(8), Group: 4, Files: 1 + r.IntN(3), Ranks: 1 + r.IntN(2), Rewards: 1 + r.IntN(2),
		DType: format.F32, Holes: r.IntN(3) == 0, Logits: r.IntN(2) == 0, FirstStep: r.IntN(4) == 0,
	}
	switch r.IntN(4) {
	case 0:
		c.DType = format.F64
	case 1:
		c.DType, c.Compute = format.BF16, format.BF16
	case 2:
		c.DType = format.BF16
	}
	return c
}

// kinds are the values of the options that decide what is computed.
func kinds(t *testing.T, option string) []string {
	o, err := convention.Find(option)
	require.NoError(t, err)
	return o.Values
}

// varied returns sets of every loss and every estimator on top of profiles that have them.
func varied(t *testing.T, seed uint64) map[string]*convention.Set {
	r := rand.New(rand.NewPCG(seed, 11))
	base := func(name string) *convention.Set {
		p, _, err := convention.Lookup(name)
		require.NoError(t, err)
		return trainer.Complete(p, r)
	}
	sets := map[string]*convention.Set{}
	for _, k := range kinds(t, "loss.kind") {
		sets["loss "+k] = trainer.Vary(base("verl-grpo@0.9"), "loss.kind", k, r)
	}
	for _, k := range kinds(t, "adv.kind") {
		sets["advantage "+k] = trainer.Vary(base("verl-ppo@0.9"), "adv.kind", k, r)
	}
	for _, k := range kinds(t, "agg.kind") {
		sets["aggregation "+k] = trainer.Vary(base("trl-grpo@1.16"), "agg.kind", k, r)
	}
	return sets
}

func finite(t *testing.T, b *dump.Batch) {
	for _, name := range b.Names() {
		x := b.Tensors[name]
		for i, v := range x.Data {
			if name == "token_loss" && x.Layout == dump.PerToken && !b.Mask[i] {
				continue
			}
			require.Falsef(t, math.IsNaN(v) || math.IsInf(v, 0), "%s[%d] = %v", name, i, v)
		}
	}
}

// identities holds a healthy batch to what needs no formula of the reference.
func identities(t *testing.T, b *dump.Batch, s *convention.Set, c trainer.Config) {
	tolerance := map[format.DType]float64{format.F64: 1e-12, format.F32: 1e-5, format.BF16: 0.05}[c.DType]
	finite(t, b)
	require.Equal(t, b.Rows*b.Cols, len(b.Mask))
	last := 0
	for _, f := range b.Files {
		require.Equal(t, last, f.Lo)
		last = f.Hi
	}
	require.Equal(t, b.Rows, last)
	if kl := b.Token("kl"); kl != nil && s.Value("kl.kind").String() == "k3" {
		for i, k := range kl {
			require.Falsef(t, b.Mask[i] && k < -tolerance, "k3 = %v at %d", k, i)
		}
	}
	for i, m := range b.Mask {
		require.LessOrEqual(t, b.Token("logp_new")[i], 1.0)
		if m {
			require.LessOrEqual(t, b.Token("logp_new")[i], tolerance)
		} else if s.Value("agg.kind").String() != "luspo" && s.Value("mask.tokens").String() == "response" {
			require.Zero(t, b.Token("dlogp")[i])
		}
	}
	if group := s.Value("adv.kind").String() == "group"; group && s.Value("adv.scale").String() != "loo_std" &&
		s.Value("kl.place").String() != "sequence_reward_after" && s.Value("reward.clip").String() != "after_baseline" {
		sums, sizes := map[float64]float64{}, map[float64]float64{}
		a := b.Row("advantages")
		for r, g := range b.Row("group_id") {
			switch {
			case a != nil:
				sums[g] += a[r]
				sizes[g] += math.Abs(a[r])
			default:
				row := b.Token("advantages")[r*b.Cols : (r+1)*b.Cols]
				x := slices.MaxFunc(row, func(x, y float64) int { return compare(math.Abs(x), math.Abs(y)) })
				sums[g] += x
				sizes[g] += math.Abs(x)
				if !slices.Contains(b.Mask[r*b.Cols:(r+1)*b.Cols], true) {
					sizes[g] = math.Inf(1) // an empty row has an advantage that is not dumped
				}
			}
		}
		for g, sum := range sums {
			// Equal rewards may leave the rounding of their mean over ε.
			if sizes[g] > 0.01 {
				require.LessOrEqualf(t, math.Abs(sum), 8*tolerance*(1+sizes[g]), "advantages of group %v", g)
			}
		}
	}
	if c.FirstStep && !strings.Contains(b.Meta.Profile, "rloo") {
		for i, m := range b.Mask {
			if m {
				require.Equal(t, b.Token("logp_old")[i], b.Token("logp_new")[i])
				require.Equal(t, b.Token("logp_ref")[i], b.Token("logp_new")[i])
			}
		}
	}
	loss := b.PerFile("loss")
	for f := range b.Files {
		sum := b.PerFile("pg_loss")[f]
		for _, name := range []string{"kl_loss", "entropy_loss", "value_loss"} {
			if x := b.PerFile(name); x != nil && (name != "value_loss" || s.Value("value.coef").Kind() == convention.Number) {
				sum += x[f]
			}
		}
		require.InDelta(t, sum, loss[f], 4*tolerance*(1+math.Abs(sum)), "the terms of the loss")
	}
}

func compare(x, y float64) int {
	if x < y {
		return -1
	}
	return 1
}

func TestHealthyProfiles(t *testing.T) {
	seeds := 10
	if testing.Short() {
		seeds = 3
	}
	for _, p := range convention.Profiles() {
		t.Run(p.Name, func(t *testing.T) {
			for seed := range seeds {
				c := random(p, uint64(seed))
				b, s := trainer.Healthy(c)
				identities(t, b, s, c)
				for _, o := range convention.Options() {
					if len(o.Stages) > 0 {
						require.NotEqual(t, convention.Unknown, s.Value(o.Name).Kind(), o.Name)
						require.True(t, strings.Contains(s.Origin(o.Name), "@") || s.Origin(o.Name) == "run")
					}
				}
			}
		})
	}
}

func TestHealthyKinds(t *testing.T) {
	p, _, err := convention.Lookup("verl-grpo@0.9")
	require.NoError(t, err)
	for seed := range uint64(4) {
		for name, set := range varied(t, seed) {
			t.Run(fmt.Sprint(name, " ", seed), func(t *testing.T) {
				c := random(p, seed)
				c.Set = set
				b, s := trainer.Healthy(c)
				identities(t, b, s, c)
			})
		}
	}
}

// digest returns a hash of everything in a batch.
func digest(b *dump.Batch, s *convention.Set) uint64 {
	h := fnv.New64a()
	for _, name := range b.Names() {
		fmt.Fprintln(h, name, b.Tensors[name].Shape, b.Tensors[name].Data)
	}
	fmt.Fprintln(h, b.Mask, b.Files[0].Scalars, b.Meta.Options)
	for _, name := range s.Facts() {
		v, _ := s.Fact(name)
		fmt.Fprintln(h, name, v)
	}
	return h.Sum64()
}

func TestDeterministic(t *testing.T) {
	for i, p := range convention.Profiles() {
		c := random(p, uint64(i))
		one, two := digest(trainer.Healthy(c)), digest(trainer.Healthy(c))
		require.Equal(t, one, two, p.Name)
		c.Seed++
		require.NotEqual(t, one, digest(trainer.Healthy(c)), p.Name)
		for _, plant := range []string{"ADV-SIGN", "LOGP-SHIFT", "AGG-GA-TWICE"} {
			b, s, _ := trainer.Faulty(c, plant)
			again, set, _ := trainer.Faulty(c, plant)
			require.Equal(t, digest(b, s), digest(again, set))
		}
	}
}
