// Command mutants measures the tests: it plants a seeded sample of small faults in the packages named (another operator, a boundary
// moved by one, a condition negated, a statement dropped), one at a time, and says which the tests let live.
//
//	go run ./cmd/mutants [-n 200] [-seed 1] [-log FILE] [-jobs 2] [-list] [PACKAGES]
//
// A mutant is killed by the short tests of its own package or of a package that imports it, in code or in tests. It is compiled
// by way of go's -overlay: no file is changed. With -log, what was tried is kept there, a line of JSON each, and a run that was
// cut off goes on where it ended.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// A trial is what became of one mutant.
type trial struct {
	site
	Package string  `json:"package"`
	Outcome string  `json:"outcome"` // killed, timeout, survived
	By      string  `json:"by,omitempty"`
	Seconds float64 `json:"seconds"`
	Before  string  `json:"before,omitempty"` // the line of the mutant, before and after
	After   string  `json:"after,omitempty"`
}

func main() {
	n := flag.Int("n", 200, "mutants to try")
	seed := flag.Uint64("seed", 1, "seed of the sample")
	log := flag.String("log", "", "file that keeps the trials; those in it are not tried again")
	jobs := flag.Int("jobs", 2, "mutants tried at the same time")
	limit := flag.Duration("limit", 10*time.Minute, "longest run of one package's tests; one that takes ten times its own time and a minute is cut off before")
	skip := flag.String("skip", "", "packages, separated by commas, with those below them, whose tests are not run for what they import")
	own := flag.Bool("own", false, "run the tests of the mutant's own package only: a first pass before -again")
	only := flag.String("only", "", "try only mutants whose file contains this")
	again := flag.Bool("again", false, "try those again that survived, after new tests or with packages that were skipped")
	list := flag.Bool("list", false, "print the sample and try none")
	flag.Parse()
	patterns := flag.Args()
	if len(patterns) == 0 {
		patterns = []string{"./reference/...", "./verify/...", "./internal/format/..."}
	}
	if err := run(*n, *seed, *log, *jobs, *limit, strings.Split(*skip, ","), *only, *own, *again, *list, patterns); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(n int, seed uint64, log string, jobs int, limit time.Duration, skip []string, only string, own, again, list bool, patterns []string) error {
	m, err := load(patterns)
	if err != nil {
		return err
	}
	sample := m.sample(n, rand.New(rand.NewPCG(seed, 0)))
	fmt.Printf("%d of %d sites\n", len(sample), m.count())
	if list {
		for _, s := range sample {
			before, after := m.lines(s)
			fmt.Printf("%s:%d: %s\n\t- %s\n\t+ %s\n", s.File, s.Line, s.Operator, before, after)
		}
		return nil
	}
	done, err := readLog(log)
	if err != nil {
		return err
	}
	b := &bench{module: m, limit: limit, skip: skip, own: own, usual: map[string]func() (float64, error){}}
	var sink *os.File
	if log != "" {
		if sink, err = os.OpenFile(log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644); err != nil {
			return err
		}
		defer sink.Close()
	}
	// Packages with few tests come first, so that a run that is cut off has tried the most.
	order := slices.Clone(sample)
	slices.SortStableFunc(order, func(x, y site) int { return m.tests[m.packageOf(x)] - m.tests[m.packageOf(y)] })
	var mu sync.Mutex
	var wait sync.WaitGroup
	work := make(chan site)
	var failed error
	for range jobs {
		wait.Go(func() {
			for s := range work {
				t, err := b.try(s)
				mu.Lock()
				if err != nil {
					failed = err
				} else {
					done[s.id()] = t
					print(t)
					if sink != nil {
						line, _ := json.Marshal(t)
						_, failed = sink.Write(append(line, '\n'))
					}
				}
				mu.Unlock()
			}
		})
	}
	for _, s := range order {
		mu.Lock()
		stop := failed != nil
		mu.Unlock()
		if stop {
			break
		}
		if (done[s.id()].Outcome == "" || again && done[s.id()].Outcome == "survived") && strings.Contains(s.File, only) {
			work <- s
		}
	}
	close(work)
	wait.Wait()
	if failed != nil {
		return failed
	}
	summary(sample, done)
	return nil
}

func print(t trial) {
	fmt.Printf("%-8s %s:%d %s, %.0f s, %s\n", t.Outcome, t.File, t.Line, t.Operator, t.Seconds, t.By)
	if t.Outcome == "survived" {
		fmt.Printf("\t- %s\n\t+ %s\n", t.Before, t.After)
	}
}

// summary prints the share that was killed, and the survivors.
func summary(sample []site, done map[string]trial) {
	tried, killed := 0, 0
	per := map[string][2]int{}
	var left []trial
	for _, s := range sample {
		t, ok := done[s.id()]
		if !ok {
			continue
		}
		tried++
		c := per[t.Package]
		c[1]++
		if t.Outcome == "survived" {
			left = append(left, t)
		} else {
			killed++
			c[0]++
		}
		per[t.Package] = c
	}
	for _, p := range slices.Sorted(maps.Keys(per)) {
		fmt.Printf("%3d of %3d  %s\n", per[p][0], per[p][1], p)
	}
	for _, t := range left {
		print(t)
	}
	if tried > 0 {
		fmt.Printf("%d of %d tried were killed, %.1f %%; sample of %d\n", killed, tried, 100*float64(killed)/float64(tried), len(sample))
	}
}

func readLog(name string) (map[string]trial, error) {
	done := map[string]trial{}
	if name == "" {
		return done, nil
	}
	f, err := os.Open(name)
	if os.IsNotExist(err) {
		return done, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var t trial
		if json.Unmarshal(lines.Bytes(), &t) == nil { // the last line of a run that was killed may be cut
			done[t.id()] = t
		}
	}
	return done, lines.Err()
}
