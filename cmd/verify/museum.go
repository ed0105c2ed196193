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
	First  string `json:"-"` // what the first judgement said, where a rule was made or mended after it

	affected, fixed side
	newer           side // of a control whose names are options: the older release under the values that the newer one declares
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
	if err := museumNotes(filepath.Join(dir, "missed"), rows, func(e *exhibit, why string) { e.Missed = why }); err != nil {
		return nil, err
	}
	return rows, museumNotes(filepath.Join(dir, "first"), rows, func(e *exhibit, what string) { e.First = what })
}

// museumNotes reads a file of lines "id | text".
func museumNotes(path string, rows []*exhibit, set func(e *exhibit, text string)) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		id, text, ok := strings.Cut(lines.Text(), " | ")
		if !ok || strings.HasPrefix(id, "#") {
			continue
		}
		i := slices.IndexFunc(rows, func(e *exhibit) bool { return e.ID == strings.TrimSpace(id) })
		if i < 0 {
			return fmt.Errorf("%s: no case is named %q", path, id)
		}
		set(rows[i], strings.TrimSpace(text))
	}
	return lines.Err()
}

// museumJudge judges the dumps of all rows, as many at a time as there are processors.
func museumJudge(ctx context.Context, dir string, rows []*exhibit) error {
	type job struct {
		row  *exhibit
		side string
		runs []string
		set  []string
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
			jobs = append(jobs, job{e, s, runs, nil})
		}
		if !e.changed() {
			continue
		}
		set, err := e.declared(ctx, dir)
		if err != nil {
			return err
		}
		older, _ := filepath.Glob(filepath.Join(dir, e.ID, "affected", "*"))
		jobs = append(jobs, job{e, "newer", older, set})
	}
	var wait sync.WaitGroup
	var lock sync.Mutex
	var failure error
	next := make(chan job)
	for range runtime.GOMAXPROCS(0) {
		wait.Go(func() {
			for j := range next {
				s, err := j.row.judge(ctx, j.runs, j.side != "fixed", j.set)
				lock.Lock()
				failure = errors.Join(failure, err)
				switch j.side {
				case "affected":
					j.row.affected = s
				case "fixed":
					j.row.fixed = s
				case "newer":
					j.row.newer = s
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

// judge judges the runs of one release, under the options of set in place of their own. What is said of the side is that of the first run that is not as expected, else of the first.
func (e *exhibit) judge(ctx context.Context, runs []string, affected bool, set []string) (side, error) {
	s := side{caught: true, named: true}
	wrong := false
	for _, path := range runs {
		found, exit, err := museumRun(ctx, path, set)
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
			if i := slices.IndexFunc(r.Explanations, func(x check.Explanation) bool {
				return slices.ContainsFunc(x.Options, func(o check.OptionChange) bool { return slices.Contains(e.Names, o.Option) })
			}); set != nil && i >= 0 {
				var both []string
				for _, o := range r.Explanations[i].Options {
					both = append(both, fmt.Sprintf("%s %s, declared %s", o.Option, o.Value, o.Declared))
				}
				first = strings.Join(both, "; ")
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
	case e.changed() && !(e.newer.caught && e.newer.named):
		return "the older release under what the newer one declares is not told by the option"
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
		if e.changed() {
			fmt.Fprintf(w, "    affected, under the newer release's values: %s %s\n", &e.newer, e.newer.first)
		}
		for _, s := range []string{e.Missed, e.First, e.unexpected()} {
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
	later := 0
	for _, e := range rows {
		if e.LeftOut == "" && e.First != "" {
			later++
		}
	}
	fmt.Fprintf(w, `# verify museum: bugs that were shipped

Bugs of released frameworks, rebuilt from the wheels on PyPI (golden/gen/museum; the wheels' sha256 are in golden/museum/manifest.json).
The functions are cut out of the affected and of the fixed release and run on the same inputs; what they compute is dumped and judged by
verify dump, folders of weights by verify checkpoint. %d bugs: **%d caught, %d with the right first name**. %d controls, changes that were not bugs. Releases that fail and should
not: %d. The rows and their right names were written down (golden/museum/rows) before they were judged; %d of them are not rebuilt.
For %d bugs a rule was made or mended after the first judgement (¹, what it said is [below](#rules-made-after-the-first-judgement)).
This page is what verify museum --markdown prints.

| case | releases | issue | what | affected: verdict, first explanation | fixed |
|---|---|---|---|---|---|
`, bugs, caught, named, controls, failed, left, later)
	for _, e := range rows {
		if e.LeftOut == "" && !e.Control {
			id := e.ID
			if e.First != "" {
				id += " ¹"
			}
			fmt.Fprintf(w, "| %s | %s → %s | %s | %s | %s %s | %s |\n", id, e.Affected, e.Fixed, e.Issue, e.What, &e.affected, short(e.affected.first), e.fixed.verdict)
		}
	}
	fmt.Fprint(w, "\n## Controls\n\nNeither release fails under the meaning of its time. Where a meaning changed, the last column is the older release judged under what the newer one\ndeclares: the option and both of its values are named.\n\n| case | releases | what | older | newer | older under the newer's values |\n|---|---|---|---|---|---|\n")
	for _, e := range rows {
		if e.LeftOut == "" && e.Control {
			under := "–"
			if e.changed() {
				under = e.newer.verdict + " " + e.newer.first
			}
			fmt.Fprintf(w, "| %s | %s → %s | %s | %s | %s | %s |\n", e.ID, e.Affected, e.Fixed, strings.TrimPrefix(e.What, "control: "), e.affected.verdict, e.fixed.verdict, under)
		}
	}
	fmt.Fprint(w, "\n## Missed, or caught and not named\n\n")
	for _, e := range rows {
		if e.LeftOut == "" && e.Missed != "" {
			fmt.Fprintf(w, "- %s: %s\n", e.ID, e.Missed)
		}
	}
	fmt.Fprint(w, "\n## Rules made after the first judgement\n\nWhat the judge said before a rule was made or mended, and which.\n\n")
	for _, e := range rows {
		if e.LeftOut == "" && e.First != "" {
			fmt.Fprintf(w, "- %s: %s\n", e.ID, e.First)
		}
	}
	fmt.Fprint(w, "\n## Not rebuilt\n\n")
	for _, e := range rows {
		if e.LeftOut != "" {
			fmt.Fprintf(w, "- %s (%s, %s): %s\n", e.ID, e.Issue, e.What, cmp.Or(e.Missed, e.LeftOut))
		}
	}
}
