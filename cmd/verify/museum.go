package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"plumbline/cmd/internal/cli"
	"plumbline/verify/check"
)

// exhibit is a row of golden/museum: a bug that a release had and the next mended, or a control, a change that was none.
type exhibit struct {
	ID        string   `json:"id"`
	Framework string   `json:"framework"`
	Issue     string   `json:"issue"`
	Affected  string   `json:"affected"`
	Fixed     string   `json:"fixed"`
	Names     []string `json:"names"`  // faults, or options that would be changed: right first explanations
	Stages    []string `json:"stages"` // where the bug sits, as prefixes of checks
	What      string   `json:"what"`
	Control   bool     `json:"control"`
	LeftOut   string   `json:"left_out"` // why it was not rebuilt: then it does not count

	Missed string `json:"-"` // why it is known not to be caught ("missed …") or not to be named ("unnamed …")

	affected, fixed side
}

// side is what came of the dumps of one release: its worst verdict, and whether what is expected holds in all of them.
type side struct {
	runs, failed   int
	verdict, first string
	caught, named  bool // in all runs
}

// newMuseum judges the stored dumps of bugs that were shipped.
func newMuseum() *cobra.Command {
	var dir string
	var markdown bool
	cmd := &cobra.Command{
		Use:   "museum [CASE...]",
		Short: "judges real bugs of released frameworks, rebuilt from their wheels: the affected release and the one that mended it",
		Long: `verify museum judges dumps and folders of weights that the code of released frameworks wrote (golden/museum), as verify dump and verify
checkpoint do: for each bug the release that had it, which must fail and be named, and the release that mended it, which must not.
Controls are changes between releases that were not bugs.
CASE is a part of a case's name. Exit 1 if one is not as expected; what is known to be missed or not to be named is listed with its
reason, and counts as missed.`,
		Example: `  verify museum
  verify museum trl-3992
  verify museum --markdown > docs/museum.md`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if dir == "" {
				temp, err := os.MkdirTemp("", "plumbline-museum-")
				if err != nil {
					return err
				}
				defer os.RemoveAll(temp)
				if err := extract("museum", temp); err != nil {
					return err
				}
				dir = temp
			}
			rows, err := museumRows(dir)
			if err != nil {
				return err
			}
			if len(args) > 0 {
				rows = slices.DeleteFunc(rows, func(e *exhibit) bool {
					return !slices.ContainsFunc(args, func(a string) bool { return strings.Contains(e.ID, a) })
				})
				if len(rows) == 0 {
					return usageError{fmt.Sprintf("museum: no case is named %s", strings.Join(args, " or "))}
				}
			}
			if err := museumJudge(cmd.Context(), dir, rows); err != nil {
				return err
			}
			w := cmd.OutOrStdout()
			if markdown {
				museumPage(w, rows)
			} else {
				museumTable(w, rows)
			}
			if slices.ContainsFunc(rows, func(e *exhibit) bool { return e.unexpected() != "" }) {
				return cli.Exit{Code: check.ExitFail}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "a folder of the layout of golden/museum (default: the embedded one)")
	cmd.Flags().BoolVar(&markdown, "markdown", false, "as the page docs/museum.md")
	return cmd
}

// museumRows reads EXPECT.json, and the list of what is known to be missed.
func museumRows(dir string) ([]*exhibit, error) {
	text, err := os.ReadFile(filepath.Join(dir, "EXPECT.json"))
	if err != nil {
		return nil, err
	}
	var rows []*exhibit
	if err := json.Unmarshal(text, &rows); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, "EXPECT.json"), err)
	}
	f, err := os.Open(filepath.Join(dir, "missed"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		id, why, ok := strings.Cut(lines.Text(), " | ")
		if !ok || strings.HasPrefix(id, "#") {
			continue
		}
		i := slices.IndexFunc(rows, func(e *exhibit) bool { return e.ID == strings.TrimSpace(id) })
		if i < 0 {
			return nil, fmt.Errorf("%s: no case is named %q", f.Name(), id)
		}
		rows[i].Missed = strings.TrimSpace(why)
	}
	return rows, lines.Err()
}

// museumJudge judges the dumps of all rows, as many at a time as there are processors.
func museumJudge(ctx context.Context, dir string, rows []*exhibit) error {
	type job struct {
		row  *exhibit
		side string
		runs []string
	}
	var jobs []job
	for _, e := range rows {
		if e.LeftOut != "" {
			continue
		}
		for _, s := range []string{"affected", "fixed"} {
			runs, err := filepath.Glob(filepath.Join(dir, e.ID, s, "*"))
			if err != nil {
				return err
			}
			if len(runs) == 0 {
				return fmt.Errorf("%s has no runs", filepath.Join(dir, e.ID, s))
			}
			jobs = append(jobs, job{e, s, runs})
		}
	}
	var wait sync.WaitGroup
	var lock sync.Mutex
	var failure error
	next := make(chan job)
	for range runtime.GOMAXPROCS(0) {
		wait.Go(func() {
			for j := range next {
				s, err := j.row.judge(ctx, j.runs, j.side == "affected")
				lock.Lock()
				failure = errors.Join(failure, err)
				if j.side == "affected" {
					j.row.affected = s
				} else {
					j.row.fixed = s
				}
				lock.Unlock()
			}
		})
	}
	for _, j := range jobs {
		next <- j
	}
	close(next)
	wait.Wait()
	return failure
}

// judge judges the runs of one release. What is said of the side is that of the first run that is not as expected, else of the first.
func (e *exhibit) judge(ctx context.Context, runs []string, affected bool) (side, error) {
	s := side{caught: true, named: true}
	wrong := false
	for _, path := range runs {
		found, exit, err := museumRun(ctx, path)
		if err != nil {
			return s, err
		}
		s.runs++
		i := slices.IndexFunc(found, func(r check.Result) bool { return r.Verdict == check.Fail || r.Verdict == check.Convention })
		verdict, first, caught, named := "PASS", "", false, false
		switch {
		case exit == check.ExitFail && i >= 0:
			r := &found[i]
			s.failed++
			verdict, first = r.Verdict.String(), r.Check
			list := firstNames(r)
			if len(list) > 0 {
				first = strings.Join(list, ", ")
			}
			caught = slices.ContainsFunc(found, func(r check.Result) bool {
				return (r.Verdict == check.Fail || r.Verdict == check.Convention) && slices.ContainsFunc(e.Stages, func(p string) bool { return strings.HasPrefix(r.Check, p) })
			})
			named = slices.ContainsFunc(list, func(n string) bool {
				option, _, _ := strings.Cut(n, "=")
				return slices.Contains(e.Names, n) || slices.Contains(e.Names, option)
			})
		case exit != check.ExitPass:
			verdict = "UNDETERMINED"
			if k := slices.IndexFunc(found, func(r check.Result) bool { return r.Verdict == check.Undetermined }); k >= 0 {
				first = found[k].Check
			}
		}
		s.caught, s.named = s.caught && caught, s.named && named
		bad := affected && !(caught && named) || !affected && verdict != "PASS"
		if s.runs == 1 || bad && !wrong {
			s.verdict, s.first, wrong = verdict, first, bad
		}
	}
	return s, nil
}

// firstNames returns what the first finding says: its explanation, or those of its class where at most eight give the same numbers.
func firstNames(r *check.Result) (list []string) {
	add := func(n string) {
		if n != "" && !slices.Contains(list, n) {
			list = append(list, n)
		}
	}
	for i, x := range r.Explanations {
		if i > 0 && (len(r.Class) > 8 || !slices.Contains(r.Class, x.Fault)) {
			continue
		}
		add(x.Fault)
		for _, o := range x.Options {
			add(o.Option + "=" + o.Value)
		}
	}
	if len(r.Class) <= 8 {
		for _, n := range r.Class {
			add(n)
		}
	}
	return list
}

// unexpected says what is not as it should be, "" if nothing is.
func (e *exhibit) unexpected() string {
	missed, unnamed := strings.HasPrefix(e.Missed, "missed"), strings.HasPrefix(e.Missed, "unnamed")
	switch {
	case e.LeftOut != "":
		return ""
	case e.fixed.failed > 0:
		return "the fixed release fails"
	case e.Control && e.affected.failed > 0:
		return "the older release of a control fails"
	case e.Control:
		return ""
	case e.affected.caught == missed:
		return map[bool]string{true: "caught, and listed as missed", false: "not caught"}[e.affected.caught]
	case !missed && e.affected.named == unnamed:
		return map[bool]string{true: "named, and listed as not named", false: "not named"}[e.affected.named]
	}
	return ""
}

// museumSums counts the rows.
func museumSums(rows []*exhibit) (bugs, caught, named, controls, failed, left int) {
	for _, e := range rows {
		switch {
		case e.LeftOut != "":
			left++
			continue
		case e.Control:
			controls++
			if e.affected.failed > 0 {
				failed++
			}
		default:
			bugs++
			if e.affected.caught {
				caught++
				if e.affected.named {
					named++
				}
			}
		}
		if e.fixed.failed > 0 {
			failed++
		}
	}
	return
}

func (s *side) String() string {
	text := s.verdict
	if s.failed > 0 && s.failed < s.runs {
		text = fmt.Sprintf("%s (%d of %d runs)", text, s.failed, s.runs)
	}
	return text
}

// short cuts a list of names after the third.
func short(names string) string {
	list := strings.Split(names, ", ")
	if len(list) > 3 {
		return strings.Join(list[:3], ", ") + " …"
	}
	return names
}

func museumTable(w io.Writer, rows []*exhibit) {
	for _, e := range rows {
		if e.LeftOut != "" {
			continue
		}
		mark := "✓"
		if e.unexpected() != "" {
			mark = "✗"
		} else if e.Missed != "" {
			mark = "–"
		}
		fmt.Fprintf(w, "%s %-20s %-17s → %-17s %s\n    %s\n    affected: %s %s\n    fixed:    %s %s\n", mark, e.ID, e.Affected, e.Fixed, e.Issue, e.What, &e.affected, short(e.affected.first), &e.fixed, e.fixed.first)
		for _, s := range []string{e.Missed, e.unexpected()} {
			if s != "" {
				fmt.Fprintf(w, "    %s\n", s)
			}
		}
	}
	bugs, caught, named, controls, failed, left := museumSums(rows)
	fmt.Fprintf(w, "\n%d bugs of releases: %d caught, %d with the right first name; %d controls; %d releases fail that should not; %d rows not rebuilt\n", bugs, caught, named, controls, failed, left)
}

// museumPage prints docs/museum.md.
func museumPage(w io.Writer, rows []*exhibit) {
	bugs, caught, named, controls, failed, left := museumSums(rows)
	fmt.Fprintf(w, `# verify museum: bugs that were shipped

Bugs of released frameworks, rebuilt from the wheels on PyPI (golden/gen/museum; the wheels' sha256 are in golden/museum/manifest.json).
The functions are cut out of the affected and of the fixed release and run on the same inputs; what they compute is dumped and judged by
verify dump, folders of weights by verify checkpoint. %d bugs: **%d caught, %d with the right first name**. %d controls, changes that were not bugs. Releases that fail and should
not: %d. The rows and their right names were written down (golden/museum/rows) before the first was judged; %d of them are not rebuilt.
This page is what verify museum --markdown prints.

| case | releases | issue | what | affected: verdict, first explanation | fixed |
|---|---|---|---|---|---|
`, bugs, caught, named, controls, failed, left)
	for _, e := range rows {
		if e.LeftOut == "" && !e.Control {
			fmt.Fprintf(w, "| %s | %s → %s | %s | %s | %s %s | %s |\n", e.ID, e.Affected, e.Fixed, e.Issue, e.What, &e.affected, short(e.affected.first), e.fixed.verdict)
		}
	}
	fmt.Fprint(w, "\n## Controls\n\nNeither release fails under the meaning of its time.\n\n| case | releases | what | older | newer |\n|---|---|---|---|---|\n")
	for _, e := range rows {
		if e.LeftOut == "" && e.Control {
			fmt.Fprintf(w, "| %s | %s → %s | %s | %s | %s |\n", e.ID, e.Affected, e.Fixed, strings.TrimPrefix(e.What, "control: "), e.affected.verdict, e.fixed.verdict)
		}
	}
	fmt.Fprint(w, "\n## Missed, or caught and not named\n\n")
	for _, e := range rows {
		if e.LeftOut == "" && e.Missed != "" {
			fmt.Fprintf(w, "- %s: %s\n", e.ID, e.Missed)
		}
	}
	fmt.Fprint(w, "\n## Not rebuilt\n\n")
	for _, e := range rows {
		if e.LeftOut != "" {
			fmt.Fprintf(w, "- %s (%s, %s): %s\n", e.ID, e.Issue, e.What, cmp.Or(e.Missed, e.LeftOut))
		}
	}
}
