// Package dump plants bugs in batches of the independent trainer and judges them as a user's dump is judged: what is caught, what
// is named, and what a healthy batch must not raise.
package dump

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	judge "plumbline/verify/dump"
	"plumbline/verify/fault"
	"plumbline/verify/plant/trainer"
	"plumbline/verify/stage"
)

// Planted is what became of one bug, planted in the independent trainer.
type Planted struct {
	Plant          *trainer.Plant
	Profile, DType string
	Seed           uint64
	Visible        bool     // the data show it
	LeftOut        string   // why the batch does not count, where the data do not show it or nothing can judge them
	Caught         bool     // some check did not pass
	By             []string // the checks that did not
	Named          bool     // the first finding names it, or a bug that gives the same numbers
	First          string   // what the first finding names, "" if nothing
	Class          []string // all that the first finding names: what gives the same numbers on these data
}

// Declared returns a batch that declares the options and facts of a set, as a writer of neutral options would.
func Declared(b *dump.Batch, set *convention.Set) *dump.Batch {
	c := *b
	c.Meta.Options = nil
	for _, name := range set.Names() {
		v := set.Value(name)
		o := dump.Option{Name: name}
		switch v.Kind() {
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
		report, err := judge.Judge(ctx, judge.Batches{Declared(b, set)}, judge.Options{})
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
	k := Planted{Plant: plant, Profile: p.Name, DType: dtype.String(), LeftOut: impossible}
	for try := range uint64(12) {
		r := rand.New(rand.NewPCG(seed, try))
		s := RandomScenario(p, r)
		s.Config.Set = plant.Under(p.Name, s.Config.Set, r)
		s.Config.DType = dtype
		s.Config.Logits = true
		s.Config.Rows, s.Config.Cols = s.Config.Group*8, max(s.Config.Cols, 20)
		if slices.Equal(plant.Outputs, []string{"logp_gen"}) {
			s.Config.Rows *= 8 // a pattern in the noise between engine and trainer takes more tokens than a formula
		}
		s.Config.FirstStep = try%3 == 2 // some bugs show at the first update only
		if !plant.Applies(s.Config.Set) {
			continue
		}
		if k.LeftOut == impossible {
			k.LeftOut = unshown
		}
		b, set, visible := trainer.Faulty(s.Config, plant.ID)
		if !visible || slices.ContainsFunc(plant.Needs, func(name string) bool { return b.Tensors[name] == nil }) {
			continue
		}
		k.Visible, k.LeftOut, k.Seed = true, "", s.Config.Seed
		report, err := judge.Judge(ctx, judge.Batches{Declared(b, set)}, judge.Options{FirstStep: s.Config.FirstStep, Leading: true})
		if err != nil {
			return k, fmt.Errorf("%s in %s: %w", plant.ID, s, err)
		}
		findings := slices.DeleteFunc(slices.Clone(report.Results), func(r check.Result) bool {
			return r.Verdict != check.Fail && r.Verdict != check.Convention && r.Verdict != check.Warn
		})
		if len(findings) == 0 {
			open := stillOpen(report, plant)
			if k.LeftOut = lacking(report, plant); open && k.LeftOut == "" && dtype == format.BF16 {
				k.LeftOut = undecided
			}
			k.Visible = k.LeftOut == ""
			if try < 8 && (open || !k.Visible) {
				continue // another batch may have what is needed to decide, or narrower bounds
			}
			return k, nil
		}
		slices.SortStableFunc(findings, func(a, b check.Result) int { return rank(a.Verdict) - rank(b.Verdict) })
		for _, res := range findings {
			if !k.Caught {
				k.Caught, k.Class = true, res.Class
				for _, e := range res.Explanations {
					k.First = cmp.Or(k.First, e.Fault)
					k.Named = k.Named || !e.Lead && sameBug(e.Fault, plant)
				}
			}
			k.By = append(k.By, res.Check)
		}
		k.Named = k.Named && len(k.Class) <= widest
		return k, nil
	}
	return k, nil
}

// widest is the number of explanations that give the same numbers above which a finding names nothing, whatever is among them.
const widest = 8

// Reasons for which a batch does not count.
const (
	impossible = "a program with these options cannot have the bug"
	unshown    = "no batch of twelve shows it: it takes data, or tensors, that the profile's do not have"
	undecided  = "in 16 bits: the checks of what it changes are UNDETERMINED, since rounding the inputs on storing may change it as much"
	unformed   = "all that it changes are logged numbers whose formula is not known of this framework"
)

// stillOpen reports whether an output of the plant could not be judged.
func stillOpen(r *judge.Report, plant *trainer.Plant) bool {
	return slices.ContainsFunc(r.Results, func(res check.Result) bool {
		return (res.Verdict == check.Undetermined || res.Verdict == check.NotSeen) && judgesOne(res.Check, plant)
	})
}

// lacking says why nothing that the plant changes can be judged: its outputs are logged numbers that no check has a formula for, or
// whose checks say what is not in the dump. It is "" if one of them was judged, or is a tensor.
func lacking(r *judge.Report, plant *trainer.Plant) (why string) {
	if slices.ContainsFunc(plant.Outputs, func(o string) bool { return !strings.HasPrefix(o, "scalar:") }) {
		return ""
	}
	why = unformed
	for _, res := range r.Results {
		if !judgesOne(res.Check, plant) {
			continue
		}
		if res.Verdict != check.NotSeen {
			return ""
		}
		why = res.Check + ": " + res.Reason
	}
	return why
}

func judgesOne(id string, plant *trainer.Plant) bool {
	return slices.ContainsFunc(plant.Outputs, func(o string) bool { return judges(id, o) })
}

// judges reports whether the check of that id judges an output of a plant.
func judges(id, output string) bool {
	c := stage.Find(id)
	return c != nil && c.Output == strings.Replace(output, "scalar:", "scalars/", 1)
}

// rank puts failures before warnings.
func rank(v check.Verdict) int {
	if v == check.Warn {
		return 1
	}
	return 0
}

// sameBug reports whether a bug that an explanation names is the plant, or stands for one of its rows.
func sameBug(id string, plant *trainer.Plant) bool {
	if id == "FACTOR" && strings.HasPrefix(plant.ID, "FACTOR-") {
		return true
	}
	return id == plant.ID || slices.ContainsFunc(fault.RowsOf(id), func(row string) bool { return row != "C3" && slices.Contains(plant.Bug().Rows, row) })
}

// Count counts batches with a planted bug: those that show it, those on which it was caught and named first, and those left out.
type Count struct{ Batches, Caught, Named, LeftOut int }

// Plus returns the sums of two counts.
func (c Count) Plus(d Count) Count {
	return Count{c.Batches + d.Batches, c.Caught + d.Caught, c.Named + d.Named, c.LeftOut + d.LeftOut}
}

// Score is what became of one plant over several batches.
type Score struct {
	Plant *trainer.Plant
	Count
	Types   map[string]*Count // by the type of the batches
	By      map[string]int    // how often each check saw it
	First   map[string]int    // what the first finding named, where it was not the plant
	Classes []int             // of the batches on which it was named: how many explanations the first finding had
	Missed  []string          // profile and type of batches on which it was not caught
	Reasons map[string]int    // for which batches are left out
}

// PlantAll plants every bug in batches of the given profiles and types, one of each, and returns a score for every bug. Bugs
// that no batch shows have a score of 0 batches. Every batch is drawn and judged on its own, on all processors at once; the
// scores do not depend on how many there are.
func PlantAll(ctx context.Context, profiles []*convention.Profile, types []format.DType, seed uint64, each func(done, total int)) ([]Score, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	perPlant := len(profiles) * len(types)
	planted := make([]Planted, len(trainer.Plants)*perPlant)
	jobs := make(chan int)
	done := make(chan struct{}, len(planted)) // nobody waits for the reader
	var workers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), max(1, len(planted))) {
		workers.Go(func() {
			for i := range jobs {
				profile := i % perPlant / len(types)
				k, err := Plant(ctx, &trainer.Plants[i/perPlant], profiles[profile], types[i%len(types)], seed+uint64(profile))
				if err != nil {
					stop(err)
				}
				planted[i] = k
				done <- struct{}{}
			}
		})
	}
	go func() {
		defer close(jobs)
		for i := range planted {
			select {
			case jobs <- i:
			case <-ctx.Done():
				return
			}
		}
	}()
	go func() {
		workers.Wait()
		close(done)
	}()
	n := 0
	for range done {
		if n++; each != nil && n%perPlant == 0 {
			each(n/perPlant, len(trainer.Plants))
		}
	}
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	scores := make([]Score, len(trainer.Plants))
	for i := range scores {
		s := &scores[i]
		*s = Score{Plant: &trainer.Plants[i], By: map[string]int{}, First: map[string]int{}, Reasons: map[string]int{}, Types: map[string]*Count{}}
		for _, k := range planted[i*perPlant : (i+1)*perPlant] {
			s.add(k)
		}
	}
	return scores, nil
}

func (s *Score) add(k Planted) {
	t := s.Types[k.DType]
	if t == nil {
		t = &Count{}
		s.Types[k.DType] = t
	}
	for _, c := range []*Count{&s.Count, t} {
		c.add(k)
	}
	switch {
	case !k.Visible:
		s.Reasons[k.LeftOut]++
		return
	case !k.Caught:
		s.Missed = append(s.Missed, k.Profile+" "+k.DType)
		return
	case k.Named:
		s.Classes = append(s.Classes, len(k.Class))
	default:
		s.First[k.First]++
	}
	for _, by := range k.By {
		s.By[by]++
	}
}

func (c *Count) add(k Planted) {
	switch {
	case !k.Visible:
		c.LeftOut++
		return
	case k.Named:
		c.Named++
		fallthrough
	case k.Caught:
		c.Caught++
	}
	c.Batches++
}

// Total adds up the scores: batches that show a bug, those on which it was caught, and those on which it was named first.
func Total(scores []Score) (batches, caught, named int) {
	for _, s := range scores {
		batches += s.Batches
		caught += s.Caught
		named += s.Named
	}
	return batches, caught, named
}
