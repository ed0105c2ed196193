package dump_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/cases"
	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/dump"
	plant "plumbline/verify/plant/dump"
	"plumbline/verify/plant/trainer"
)

// TestHealthyIsSilent judges batches of the independent trainer, in all profiles, that declare every option.
func TestHealthyIsSilent(t *testing.T) {
	n := 600 / cases.Every
	if testing.Short() {
		n = 100
	}
	alarms, err := plant.Healthy(context.Background(), 1, n, nil)
	require.NoError(t, err)
	require.Empty(t, len(alarms), "%v", alarms[:min(len(alarms), 10)])
}

// declaring is how a writer of healthy batches declares their options.
type declaring struct {
	name    string
	profile bool // by naming the profile, too
	bare    bool // only those that apply to it
}

var (
	byProfile = declaring{"with the profile", true, false}
	bareOnly  = declaring{"what applies, and no profile", false, true}
)

// silence holds what became of healthy batches.
type silence struct {
	sync.Mutex
	alarms    []string
	undecided map[string]int // by check
}

// judgeHealthy judges n batches of the independent trainer on all processors.
func judgeHealthy(t *testing.T, how declaring, seed uint64, n int) *silence {
	s := &silence{undecided: map[string]int{}}
	jobs := make(chan int)
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for i := range jobs {
				s.judge(t, how, seed, i)
			}
		})
	}
	for i := range n {
		jobs <- i
	}
	close(jobs)
	workers.Wait()
	return s
}

func (s *silence) judge(t *testing.T, how declaring, seed uint64, i int) {
	profiles := convention.Profiles()
	p := profiles[i%len(profiles)]
	scenario := plant.RandomScenario(p, rand.New(rand.NewPCG(seed, uint64(i))))
	b, set := trainer.Healthy(scenario.Config)
	b = plant.Declared(b, set)
	if how.bare {
		b.Meta.Options = slices.DeleteFunc(b.Meta.Options, func(o dumpfile.Option) bool { return o.Value == "–" })
	}
	o := dump.Options{}
	if how.profile {
		o.Profile = p.Name
	}
	r, err := dump.Judge(context.Background(), dump.Batches{b}, o)
	s.Lock()
	defer s.Unlock()
	if err != nil {
		s.alarms = append(s.alarms, fmt.Sprintf("%s: %v", scenario, err))
		return
	}
	for _, res := range r.Results {
		switch res.Verdict {
		case check.Undetermined:
			s.undecided[res.Check]++
		case check.Fail, check.Convention:
			s.alarms = append(s.alarms, fmt.Sprintf("#%d %s: %s %s: %s %s", i, scenario, res.Verdict, res.Check, res.Reason, res.Where))
		case check.Warn:
			if len(res.Explanations) == 0 {
				s.alarms = append(s.alarms, fmt.Sprintf("#%d %s: %s %s: %s %s", i, scenario, res.Verdict, res.Check, res.Reason, res.Where))
			}
		}
	}
}

// silent demands that there was no alarm, and logs how often which check could not decide.
func (s *silence) silent(t *testing.T, n int) {
	t.Helper()
	for _, id := range slices.SortedFunc(maps.Keys(s.undecided), func(a, b string) int { return s.undecided[b] - s.undecided[a] }) {
		t.Logf("UNDETERMINED %5.1f of 1,000 %s", 1000*float64(s.undecided[id])/float64(n), id)
	}
	require.Empty(t, len(s.alarms), "%v", s.alarms[:min(len(s.alarms), 10)])
}

func TestHealthyUnderItsProfileIsSilent(t *testing.T) {
	n := 300
	if testing.Short() {
		n = 50
	}
	judgeHealthy(t, byProfile, 2, n).silent(t, n)
}

// TestFirstStepIsSilent judges the first update, at which more has to hold, in all profiles.
func TestFirstStepIsSilent(t *testing.T) {
	for i, p := range convention.Profiles() {
		r := rand.New(rand.NewPCG(5, uint64(i)))
		s := plant.RandomScenario(p, r)
		s.Config.FirstStep = true
		b, set := trainer.Healthy(s.Config)
		report, err := dump.Judge(context.Background(), dump.Batches{plant.Declared(b, set)}, dump.Options{FirstStep: true})
		require.NoError(t, err)
		for _, res := range report.Results {
			require.NotContains(t, []check.Verdict{check.Fail, check.Convention, check.Warn}, res.Verdict, "%s: %s %s %s", s, res.Check, res.Reason, res.Where)
		}
	}
}

// TestHealthyUnderOtherKindsIsSilent judges batches under the options that bugs need which no profile can have as it comes.
func TestHealthyUnderOtherKindsIsSilent(t *testing.T) {
	varied := 0
	for i := range trainer.Plants {
		for _, p := range convention.Profiles() {
			r := rand.New(rand.NewPCG(6, uint64(i)))
			s := plant.RandomScenario(p, r)
			set := trainer.Plants[i].Under(p.Name, s.Config.Set, r)
			if set == s.Config.Set {
				continue
			}
			varied++
			s.Config.Set = set
			b, set := trainer.Healthy(s.Config)
			report, err := dump.Judge(context.Background(), dump.Batches{plant.Declared(b, set)}, dump.Options{})
			require.NoError(t, err)
			for _, res := range report.Results {
				if res.Check == "reward/spread" && res.Verdict == check.Warn {
					continue // a few groups of two may have equal rewards, and that is what it says
				}
				require.NotContains(t, []check.Verdict{check.Fail, check.Convention, check.Warn}, res.Verdict, "%s: %s %s %s", s, res.Check, res.Reason, res.Where)
			}
		}
	}
	require.Positive(t, varied)
}
