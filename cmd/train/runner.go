package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"plumbline/cmd/internal/cli"
	"plumbline/internal/bind"
	"plumbline/internal/config"
	"plumbline/internal/dataset"
	"plumbline/internal/format"
	"plumbline/internal/pretrained"
	"plumbline/internal/rng"
	"plumbline/internal/rundir"
	"plumbline/internal/train"
)

// trainFlags are the flags that all trainers have.
type trainFlags struct {
	command string // the trainer's
	config  string
	resume  string
	allow   []string
	verify  bool
	dump    string
}

func (f *trainFlags) bind(cmd *cobra.Command) {
	f.command = cmd.Name()
	cmd.Flags().StringVar(&f.config, "config", "", "file or embedded configuration (train --list-configs)")
	cmd.Flags().StringVar(&f.resume, "resume", "auto", "auto: go on where the folder of the run is; never: refuse one that is not empty; or a checkpoint")
	cmd.Flags().StringSliceVar(&f.allow, "allow-config-change", nil, "keys that may differ from those of the run that is resumed")
}

// settle reads configuration, environment and overrides.
func (f *trainFlags) settle(s *config.Settings, fallback string, overrides []string) error {
	name := f.config
	if name == "" {
		name = fallback
	}
	s.Open = openConfig
	if err := s.ReadFile(name); err != nil {
		if errors.Is(err, fs.ErrNotExist) && !strings.Contains(err.Error(), "defaults") {
			return usageError{"config not found: " + name}
		}
		return usageError{err.Error()}
	}
	if err := s.Environment("TRAIN", os.Environ()); err != nil {
		return usageError{err.Error()}
	}
	for _, o := range overrides {
		if err := s.Override(o); err != nil {
			msg := err.Error()
			if strings.Contains(msg, "unknown key") && !strings.Contains(msg, "did you mean") {
				msg += fmt.Sprintf(" (train %s --help lists the keys)", f.command)
			}
			return usageError{msg}
		}
	}
	if err := s.Resolve(); err != nil {
		return usageError{err.Error()}
	}
	for _, w := range s.Warnings {
		complain("WARNING: " + w)
	}
	return nil
}

// session is a run that is ready to start.
type session struct {
	train.Env
	model *pretrained.Model
	close func()
}

// start opens the folder of a run, the checkpoint that it goes on from, and the model.
func (f *trainFlags) start(out io.Writer, dir string, keep int, s *config.Settings, without []string) (*session, error) {
	if dir == "" {
		return nil, usageError{"the folder of the run has no name: give output_dir (training.output_dir of ppo, out_dir of grpo)"}
	}
	if f.resume != "auto" && f.resume != "never" {
		if _, err := os.Stat(f.resume); errors.Is(err, fs.ErrNotExist) {
			return nil, usageError{fmt.Sprintf("--resume %q: want auto, never, or the folder of a checkpoint, and there is none of that name", f.resume)}
		}
	}
	if err := f.foreignDumps(dir); err != nil {
		return nil, err
	}
	run, err := rundir.Create(dir, rundir.Options{Keep: keep})
	var locked *rundir.LockedError
	if errors.As(err, &locked) {
		return nil, usageError{err.Error()}
	}
	if err != nil {
		return nil, err
	}
	x := &session{Env: train.Env{Run: run, Out: out, ConfigSHA: s.SHA256(without...), Warn: warn}, close: func() { run.Close() }}
	if err := f.checkpoint(x, dir, s, without); err != nil {
		run.Close()
		return nil, err
	}
	return x, x.record(s)
}

func warn(format string, a ...any) { complain("WARNING: " + fmt.Sprintf(format, a...)) }

// checkpoint finds what the run goes on from.
func (f *trainFlags) checkpoint(x *session, dir string, s *config.Settings, without []string) error {
	var c *rundir.Checkpoint
	var err error
	switch f.resume {
	case "auto", "never":
		var refused []rundir.Refusal
		if c, refused, err = rundir.Newest(dir); err != nil {
			return err
		}
		if f.resume == "never" && (c != nil || len(refused) > 0) {
			return usageError{fmt.Sprintf("%s holds a run already: give another training.output_dir, or --resume auto", dir)}
		}
		for _, r := range refused {
			warn("%s is not whole and is passed over: %v", r.Name, r.Err)
		}
		if c == nil && len(refused) > 0 {
			warn("no checkpoint of %s is whole: the run starts anew", dir)
			aside, err := x.Run.Resume(&rundir.Checkpoint{})
			if err != nil {
				return err
			}
			inTheWay(dir, aside)
		}
	default:
		if c, err = rundir.Verify(f.resume); err != nil {
			return err
		}
	}
	if c == nil {
		return nil
	}
	if c.Manifest.ConfigSHA256 != x.ConfigSHA {
		if err := f.sameConfig(c, s, without); err != nil {
			return err
		}
	}
	aside, err := x.Run.Resume(c)
	if err != nil {
		return err
	}
	inTheWay(dir, aside)
	fmt.Fprintf(x.Out, "resuming from %s, step %d\n", c.Path, c.Manifest.Step)
	x.From = c
	return nil
}

func inTheWay(dir string, aside []string) {
	for _, name := range aside {
		warn("a checkpoint that is in the way is now %s", filepath.Join(dir, name))
	}
}

// sameConfig refuses to resume under another configuration, unless the keys that differ are named.
func (f *trainFlags) sameConfig(c *rundir.Checkpoint, s *config.Settings, without []string) error {
	path := filepath.Join(filepath.Dir(c.Path), "effective_config.json")
	text, err := os.ReadFile(path)
	old := map[string]any{}
	if err != nil || json.Unmarshal(text, &old) != nil {
		return usageError{fmt.Sprintf("%s was saved under another configuration, and %s does not say which", c.Path, path)}
	}
	now := map[string]any{}
	if err := json.Unmarshal(s.JSON(), &now); err != nil {
		return err
	}
	var differ []string
	for _, field := range s.Fields() {
		a, b := fmt.Sprint(old[field.Name]), fmt.Sprint(now[field.Name])
		if a != b && !slices.Contains(without, field.Name) && !slices.Contains(f.allow, field.Name) {
			differ = append(differ, fmt.Sprintf("%s (was %s, is %s)", field.Name, a, b))
		}
	}
	if len(differ) == 0 {
		return nil
	}
	return usageError{fmt.Sprintf("%s was saved under another configuration: %s; --allow-config-change KEY,… goes on all the same", c.Path, strings.Join(differ, ", "))}
}

// record writes what the run is made of.
func (x *session) record(s *config.Settings) error {
	dir := x.Run.Path()
	write := func(name string, text []byte) error {
		return format.WriteFile(filepath.Join(dir, name), func(w io.Writer) error { _, err := w.Write(text); return err })
	}
	env, err := json.MarshalIndent(map[string]any{"go": runtime.Version(), "os": runtime.GOOS, "arch": runtime.GOARCH, "cpus": runtime.NumCPU(),
		"version": buildVersion(), "config_sha256": x.ConfigSHA}, "", " ")
	if err != nil {
		return err
	}
	for _, c := range s.Changed() {
		fmt.Fprintln(x.Out, "config", c)
	}
	return errors.Join(write("effective_config.yaml", s.YAML()), write("effective_config.json", append(s.JSON(), '\n')), write("env.json", append(env, '\n')))
}

// load opens the model of a run and makes it trainable: all of it, or an adapter if lora has a rank. Of o it takes the value head
// and whether the base is quantised.
func (x *session) load(name string, lora train.LoRA, seed uint64, o bind.Options) error {
	m, extra, err := bind.Open(name, seed)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("model.name: %w", err)
	}
	if err != nil {
		return err
	}
	for _, note := range m.Notes {
		fmt.Fprintln(x.Out, "note", note)
	}
	text, err := bind.NewText(m)
	if err != nil {
		return err
	}
	o.Seed, o.Extra, o.Fingerprint = seed, extra, m.Fingerprint
	if lora.R > 0 {
		if o.Adapter, err = bind.NewAdapter(m.Base.Config, lora.R, lora.Alpha, lora.Targets, seed); err != nil {
			return usageError{err.Error()}
		}
		o.PEFT = bind.AdapterConfig(name, lora)
	}
	policy, err := bind.NewLanguage(m.Base, o)
	if err != nil {
		return usageError{err.Error()}
	}
	if o.Int8 {
		fmt.Fprintf(x.Out, "int8: %d layers are quantised row by row\n", len(policy.Codes))
	}
	x.model, x.Tokenizer, x.Policy = m, text, policy
	if x.From != nil && x.From.Manifest.BaseFingerprint != policy.Fingerprint() {
		return usageError{fmt.Sprintf("%s was trained on other base weights than those of %s", x.From.Path, name)}
	}
	return nil
}

// questions reads the rows of a data set.
func questions(name string, most, count int, seed uint64) ([]dataset.Question, error) {
	if name == "additions" {
		if count == 0 {
			count = 2000
		}
		return dataset.Additions(rng.New(seed, 4), count, most), nil
	}
	if name == "words" {
		if count == 0 {
			count = 2000
		}
		return dataset.WordLists(rng.New(seed, 4), count), nil
	}
	list, err := dataset.ReadGSM8K(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("dataset.name: %w; give a file of JSON lines {question, answer}, or dataset.name=additions", err)
	}
	if err != nil {
		return nil, err
	}
	if count > 0 && count < len(list) {
		list = list[:count]
	}
	return list, nil
}

// ended turns the end of a trainer into that of the program.
func ended(err error) error {
	if errors.Is(err, train.ErrInterrupted) {
		return fmt.Errorf("%w: the run is saved", cli.ErrInterrupted)
	}
	return err
}
