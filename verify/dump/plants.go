package dump

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/fault"
	"plumbline/verify/fault/trainer"
)

// Planted is what became of one bug, planted in the independent trainer.
type Planted struct {
	Plant          *trainer.Plant
	Profile, DType string
	Seed           uint64
	Visible        bool     // the data show it
	Caught         bool     // some check did not pass
	By             []string // the checks that did not
	Named          bool     // the first finding names it, or a bug that gives the same numbers
	First          string   // what the first finding names, "" if nothing
}

// Declared returns a batch that declares the options and facts of a set, as a writer of neutral options would.
func Declared(b *dump.Batch, set *convention.Set) *dump.Batch {
	c := *b
	c.Meta.Options = nil
	for _, name := range set.Names() {
		v := set.Value(name)
		o := dump.Option{Name: name}
		switch v.Kind() {
		case convention.NotApplicable:
			continue
		case convention.Number:
			o.Value = v.Num()
		case convention.Bool:
			o.Value = v.Bool()
		default:
			o.Value = v.String()
		}
		c.Meta.Options = append(c.Meta.Options, o)
	}
	for _, name := range set.Facts() {
		v, _ := set.Fact(name)
		c.Meta.Options = append(c.Meta.Options, dump.Option{Name: name, Value: v})
	}
	return &c
}

// Scenario is a batch of the independent trainer to draw.
type Scenario struct {
	Profile string
	Config  trainer.Config
}

func (s Scenario) String() string {
	c := s.Config
	return fmt.Sprintf("%s, seed %d, %d rows × %d, groups of %d, %d files × %d ranks, %v computed in %v, holes %v, logits %v, %d rewards, first step %v",
		s.Profile, c.Seed, c.Rows, c.Cols, c.Group, c.Files, c.Ranks, c.DType, c.Compute, c.Holes, c.Logits, c.Rewards, c.FirstStep)
}

// RandomScenario draws the options of a profile and the shape of a batch.
func RandomScenario(p *convention.Profile, r *rand.Rand) Scenario {
	c := trainer.Config{Set: trainer.Complete(p, r), Seed: r.Uint64() >> 1, Group: 2 + r.IntN(4), Cols: 4 + r.IntN(24), Files: 1 + r.IntN(3), Ranks: 1 + r.IntN(2),
		Holes: r.IntN(3) == 0, Logits: r.IntN(2) == 0, Rewards: 1, DType: []format.DType{format.F32, format.F32, format.F64, format.BF16}[r.IntN(4)]}
	c.Rows = c.Group * (2 + r.IntN(4))
	c.Compute = format.F32
	if r.IntN(3) == 0 {
		c.Rewards = 2
	}
	return Scenario{p.Name, c}
}

// Healthy draws healthy batches, judges them and returns what was wrong with each: an entry is a false alarm.
func Healthy(ctx context.Context, seed uint64, n int, each func(done int)) (alarms []string, err error) {
	profiles := convention.Profiles()
	for i := range n {
		if err := ctx.Err(); err != nil {
			return alarms, err
		}
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		s := RandomScenario(profiles[i%len(profiles)], r)
		b, set := trainer.Healthy(s.Config)
		report, err := Judge(ctx, Batches{Declared(b, set)}, Options{})
		if err != nil {
			return alarms, fmt.Errorf("%s: %w", s, err)
		}
		for _, res := range report.Results {
			if res.Verdict == check.Fail || res.Verdict == check.Convention || res.Verdict == check.Warn && len(res.Explanations) == 0 {
				alarms = append(alarms, fmt.Sprintf("%s: %s %s: %s %s", s, res.Verdict, res.Check, res.Reason, res.Where))
				break
			}
		}
		if each != nil {
			each(i + 1)
		}
	}
	return alarms, nil
}

// Plant plants one bug in a batch of the independent trainer under a profile and judges it. The data are drawn until they show
// the bug, a few times at most.
func Plant(ctx context.Context, plant *trainer.Plant, p *convention.Profile, dtype format.DType, seed uint64) (Planted, error) {
	k := Planted{Plant: plant, Profile: p.Name, DType: dtype.String()}
	for try := range uint64(12) {
		r := rand.New(rand.NewPCG(seed, try))
		s := RandomScenario(p, r)
		s.Config.DType = dtype
		s.Config.Logits = true
		if !plant.Applies(s.Config.Set) {
			continue
		}
		b, set, visible := trainer.Faulty(s.Config, plant.ID)
		if !visible {
			continue
		}
		k.Visible, k.Seed = true, s.Config.Seed
		report, err := Judge(ctx, Batches{Declared(b, set)}, Options{FirstStep: b.Meta.Step <= 1 && s.Config.FirstStep})
		if err != nil {
			return k, fmt.Errorf("%s in %s: %w", plant.ID, s, err)
		}
		for _, res := range report.Results {
			if res.Verdict != check.Fail && res.Verdict != check.Convention && res.Verdict != check.Warn {
				continue
			}
			if !k.Caught {
				k.Caught = true
				for _, e := range res.Explanations {
					if k.First == "" {
						k.First = e.Fault
					}
					k.Named = k.Named || !e.Lead && sameBug(e.Fault, plant)
				}
			}
			k.By = append(k.By, res.Check)
		}
		return k, nil
	}
	return k, nil
}

// sameBug reports whether a bug that an explanation names is the plant, or stands for one of its rows.
func sameBug(id string, plant *trainer.Plant) bool {
	return id == plant.ID || slices.ContainsFunc(fault.RowsOf(id), func(row string) bool { return row != "C3" && slices.Contains(plant.Rows, row) })
}
