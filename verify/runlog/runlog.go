// Package runlog judges what a trainer logged: it reads the logs of a run, gives them to the rules of
// [plumbline/verify/symptom], and makes results and a short report of what they find.
package runlog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"plumbline/internal/format"
	"plumbline/internal/format/runlog"
	"plumbline/verify/check"
	"plumbline/verify/symptom"
)

// Options are what is known of a run beside its logs.
type Options struct {
	Kind      string                    // program, "" or auto: told by the names in the log
	Config    map[string]string         // options of the run by name, stronger than those in the log
	Vocab     int                       // size of the vocabulary, 0 where it is not known
	Places    map[string]check.FileLine // where options of Config stand
	Selection check.Selection
	Stdin     io.Reader // what the path - stands for

	stalled time.Duration // for which nothing was written
}

// Report is what logs show.
type Report struct {
	Results []check.Result
	Brief   *check.Brief
	Inputs  []Input
	Lists   []List
	Charts  []check.Chart
}

// Input is a file that was read.
type Input struct {
	Path string
	Size int64
	What string
}

// List is lines under a heading.
type List struct {
	Title string
	Items []string
}

// Kinds are the programs whose names the dictionary tells apart.
var Kinds = []string{"auto", "shielded", "grpo", "ppo", "arc", "trl", "trl-grpo", "trl-ppo", "verl", "openrlhf", "nemo", "hf", "wandb", "tensorboard"}

// log is one file and what was seen in it.
type log struct {
	path   string
	stream bool // stdin
	size   int64
	reader *runlog.Reader
	watch  *symptom.Watch
	other  int64 // lines that were not understood
	sample []string
	err    error
	from   map[string]check.FileLine // options that another log of the run has
}

// Judge reads logs and judges them together: files of one folder are of one run. A file that is malformed is judged as far as it
// goes, and its error returned beside the report.
func Judge(ctx context.Context, paths []string, o Options) (*Report, error) {
	return judge(ctx, paths, o, fromFile(o.Stdin))
}

// source gives the rows of log k of a run to each, and fills the size of l and what its reader counts.
type source func(ctx context.Context, k int, l *log, each func(*runlog.Row) error) error

func judge(ctx context.Context, paths []string, o Options, from source) (*Report, error) {
	files, configs, err := Files(paths)
	if err != nil {
		return nil, err
	}
	config, places := map[string]string{}, map[string]check.FileLine{}
	for _, path := range configs {
		text, err := format.ReadFile(path, 1<<20)
		if err != nil {
			continue
		}
		values, lines := ParseConfig(string(text))
		for k, v := range values {
			config[k], places[k] = v, check.FileLine{Path: path, Number: lines[k]}
		}
	}
	for k, v := range o.Config {
		config[k] = v
		delete(places, k)
		if at, ok := o.Places[k]; ok {
			places[k] = at
		}
	}
	o.Places = places
	var logs []*log
	var failed error
	for k, path := range files {
		l := read(ctx, k, path, o, config, from)
		if stop := (fatal{}); errors.Is(l.err, context.Canceled) || errors.As(l.err, &stop) {
			return nil, l.err
		}
		if l.err != nil && failed == nil {
			failed = l.err
		}
		logs = append(logs, l)
	}
	share(logs)
	return report(logs, paths, o), failed
}

// share gives the logs of a folder, which are of one run, the options that any of them has. Logs whose options contradict each other are
// of two runs.
func share(logs []*log) {
	for _, l := range logs {
		for _, other := range logs {
			if l == other || filepath.Dir(l.path) != filepath.Dir(other.path) || contradict(l.watch.Config, other.watch.Config) {
				continue
			}
			for k, v := range other.watch.Config {
				if _, ok := l.watch.Config[k]; !ok {
					l.watch.Config[k] = v
					if line := other.watch.Placed[k]; line > 0 {
						l.from[k] = check.FileLine{Path: other.path, Number: int(line)}
					}
				}
			}
		}
	}
}

func contradict(a, b map[string]string) bool {
	for k, v := range a {
		if w, ok := b[k]; ok && v != w {
			return true
		}
	}
	return false
}

// Files returns the logs that paths name, and configurations that lie beside them.
func Files(paths []string) (files, configs []string, err error) {
	for _, path := range paths {
		if path == "-" {
			files = append(files, path)
			continue
		}
		info, err := os.Stat(path)
		if err != nil {
			if list, _ := filepath.Glob(path); len(list) > 0 {
				more, c, err := Files(list)
				if err != nil {
					return nil, nil, err
				}
				files, configs = append(files, more...), append(configs, c...)
				continue
			}
			return nil, nil, err
		}
		if !info.IsDir() {
			files = append(files, path)
			for _, name := range []string{"effective_config.yaml"} {
				if c := filepath.Join(filepath.Dir(path), name); exists(c) {
					configs = append(configs, c)
				}
			}
			continue
		}
		found, c, err := inFolder(path)
		if err != nil {
			return nil, nil, err
		}
		if len(found) == 0 {
			return nil, nil, fmt.Errorf("%s: %w: no file is a log (.jsonl, .log, .txt, .out, .csv, trainer_state.json, events of TensorBoard)", path, ErrNothing)
		}
		files, configs = append(files, found...), append(configs, c...)
	}
	return files, configs, nil
}

// ErrNothing says that there is no log.
var ErrNothing = errors.New("nothing to judge")

func exists(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// notLogs are files of a run folder that are no logs of numbers.
var notLogs = map[string]bool{"samples.jsonl": true, "eval_samples.jsonl": true, "requirements.txt": true, "vocab.txt": true, "merges.txt": true, "README.txt": true}

// inFolder returns the logs below a folder. An empty one counts where there is no other: a run that stopped early leaves some. Of the trainer_state.json in checkpoints, which hold the same history, the longest counts.
func inFolder(dir string) (files, configs []string, err error) {
	const most = 10_000
	var state string
	var size int64
	var empty []string
	n := 0
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if n++; n > most {
			return fs.SkipAll
		}
		if !d.Type().IsRegular() {
			return nil
		}
		name := d.Name()
		switch ext := strings.ToLower(filepath.Ext(name)); {
		case notLogs[name]:
		case name == "trainer_state.json":
			if info, err := d.Info(); err == nil && info.Size() > size {
				state, size = path, info.Size()
			}
		case name == "effective_config.yaml":
			configs = append(configs, path)
		case ext == ".jsonl" || ext == ".ndjson" || ext == ".log" || ext == ".txt" || ext == ".out" || ext == ".err" || ext == ".csv" || ext == ".tsv" || strings.Contains(name, "tfevents") || name == "wandb-history.json" || name == "history.json":
			if info, err := d.Info(); err == nil && info.Size() == 0 {
				empty = append(empty, path)
				return nil
			}
			files = append(files, path)
		}
		return nil
	})
	if len(files) == 0 && state == "" {
		files = empty
	}
	if state != "" {
		files = append(files, state)
	}
	return files, configs, err
}

// read reads log k of a run.
func read(ctx context.Context, k int, path string, o Options, config map[string]string, from source) *log {
	w := symptom.New()
	l := &log{path: path, watch: w, from: map[string]check.FileLine{}, reader: newReader()}
	if path == "-" {
		l.path, l.stream = "stdin", true
	}
	maps.Copy(w.Config, config)
	w.Vocab = float64(o.Vocab)
	switch o.Kind {
	case "", "auto", "hf", "wandb", "tensorboard":
	case "trl":
		w.Program = "trl-grpo"
	default:
		w.Program, w.Given = o.Kind, true
	}
	l.err = from(ctx, k, l, func(row *runlog.Row) error {
		if !w.Add(row, l.reader.Names) {
			l.other++
			if len(l.sample) < 3 {
				l.sample = append(l.sample, shorten(string(row.Text), 100))
			}
		}
		return nil
	})
	maps.Copy(w.Config, o.Config)
	return l
}

func newReader() *runlog.Reader { return &runlog.Reader{Known: symptom.Known} }

// fromFile reads logs where they lie, "stdin" from a stream.
func fromFile(stdin io.Reader) source {
	return func(ctx context.Context, _ int, l *log, each func(*runlog.Row) error) (err error) {
		rows := 0
		counted := func(row *runlog.Row) error {
			if rows++; rows&1023 == 0 && ctx.Err() != nil {
				return context.Canceled
			}
			return each(row)
		}
		if l.stream {
			err = l.reader.Read("stdin", stdin, counted)
		} else {
			if info, err := os.Stat(l.path); err == nil {
				l.size = info.Size()
			}
			err = l.reader.Open(l.path, counted)
		}
		l.size = cmp.Or(l.size, l.reader.Bytes)
		if err == nil && l.reader.Lines == 0 {
			err = format.Malformed(l.path, "", "is empty, want a log")
		}
		return err
	}
}

func shorten(s string, n int) string {
	if r := []rune(strings.Join(strings.Fields(s), " ")); len(r) > n {
		return string(r[:n]) + "…"
	}
	return strings.Join(strings.Fields(s), " ")
}
