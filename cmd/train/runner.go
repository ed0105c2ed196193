package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"plumbline/accel/cuda"
	"plumbline/accel/lora"
	"plumbline/cmd/internal/cli"
	"plumbline/internal/arch"
	"plumbline/internal/bind"
	"plumbline/internal/config"
	"plumbline/internal/dataset"
	"plumbline/internal/format"
	"plumbline/internal/rng"
	"plumbline/internal/rundir"
	"plumbline/internal/train"
	"plumbline/reference/model"
	"plumbline/verify/report"
)

// trainFlags are the flags that all trainers have.
type trainFlags struct {
	command string // the trainer's
	config  string
	resume  string
	allow   []string
	verify  bool
	dump    string
	keep    bool   // dumps that pass
	policy  string // that computes
	mode    lora.Mode
	cluster clusterFlags
	beside  bool // the reference beside the kernels, step by step
}

func (f *trainFlags) bind(cmd *cobra.Command) {
	f.command = cmd.Name()
	cmd.Flags().StringVar(&f.config, "config", "", "file or embedded configuration (train --list-configs)")
	cmd.Flags().StringVar(&f.resume, "resume", "auto", "auto: go on where the folder of the run is; never: refuse one that is not empty; or a checkpoint")
	cmd.Flags().StringVar(&f.policy, "policy", policyReference, "what computes: reference, float64 on the tape; accel, the kernels, which train an adapter on a base of int8 (accel:w8a8: activations too; accel:llm.int8: those below 6, as bitsandbytes does; accel:f32 and accel:bf16, a base of bfloat16: none); cuda, those on a GPU; sim, those of the GPU interpreted, for tiny models")
	cmd.Flags().BoolVar(&f.beside, "lockstep", false, "run the accelerated policy beside the reference on the same batches and compare all they compute; --policy accel:MODE, cuda or sim says which")
	cmd.Flags().StringSliceVar(&f.allow, "allow-config-change", nil, "keys that may differ from those of the run that is resumed")
}

// The policies.
const (
	policyReference = "reference"
	policyAccel     = "accel"
)

// wantPolicy is what --policy takes.
const wantPolicy = "want reference, accel, accel:w8a16, accel:w8a8, accel:llm.int8, accel:f32, accel:bf16, cuda or sim"

// accelerated reports whether the kernels compute, after --policy is read.
func (f *trainFlags) accelerated() (bool, error) {
	name, mode, given := strings.Cut(f.policy, ":")
	switch {
	case f.policy == policyReference && f.beside:
		return true, nil // w8a16
	case f.policy == policyReference:
		return false, nil
	case f.policy == bind.GPU, f.policy == bind.Simulator:
		f.mode = lora.W8A16
		return true, nil
	case name != policyAccel:
		return false, usageError{fmt.Sprintf("--policy %s: %s%s", f.policy, wantPolicy, near(f.policy, policies))}
	case !given:
		mode = lora.W8A16.String()
	}
	var err error
	if f.mode, err = lora.ParseMode(mode); err != nil {
		return false, usageError{fmt.Sprintf("--policy %s: %s%s", f.policy, wantPolicy, near(f.policy, policies))}
	}
	return true, nil
}

// trainable refuses to train what the policy does not: the kernels have no gradient by the weights of a base.
func (f *trainFlags) trainable(l train.LoRA) error {
	fast, err := f.accelerated()
	if err == nil && fast && l.R == 0 {
		err = usageError{bind.UntrainedError{}.Error()}
	}
	return err
}

// referenceOnly refuses another policy for a model that only the reference computes.
func (f *trainFlags) referenceOnly(what string) error {
	fast, err := f.accelerated()
	if err == nil && fast {
		err = usageError{fmt.Sprintf("--policy %s: %s is computed by the reference only, and all its weights are trained: leave --policy away", f.policy, what)}
	}
	return err
}

// settle reads configuration, environment and overrides.
func (f *trainFlags) settle(s *config.Settings, fallback string, overrides []string) error {
	name := cmp.Or(f.config, fallback)
	s.Open = openConfig
	if filepath.Ext(name) == ".py" { // lines of a file that had the rest of the configuration: they lie over the embedded one
		if err := s.ReadFile(fallback); err != nil {
			return usageError{err.Error()}
		}
	}
	if err := s.ReadFile(name); err != nil {
		if errors.Is(err, fs.ErrNotExist) && !strings.Contains(err.Error(), "defaults") {
			return usageError{"config not found: " + name + near(name, configNames()) + " (train --list-configs)"}
		}
		return usageError{err.Error()}
	}
	if err := s.Environment("TRAIN", os.Environ()); err != nil {
		return usageError{err.Error()}
	}
	tellTwice(overrides)
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
	flags      *trainFlags
	embeddings func() (table []float64, width int) // of the model's tokens
	lockstep   *bind.Lockstep                      // nil without --lockstep
	release    func()                              // see close
	done       bool                                // the run has ended well
}

// start opens the folder of a run, the checkpoint that it goes on from, and the model.
func (f *trainFlags) start(cmd *cobra.Command, dir string, keep int, s *config.Settings, without []string) (*session, error) {
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
	if cli.Is[*rundir.LockedError](err) {
		return nil, usageError{err.Error()}
	}
	if err != nil {
		return nil, err
	}
	x := &session{flags: f, Env: train.Env{Run: run, Out: cmd.OutOrStdout(), ConfigSHA: s.SHA256(without...), Warn: warn}, release: func() { run.Close() }}
	x.Progress = progress(cmd.ErrOrStderr(), cli.Terminal(cmd.ErrOrStderr()) && os.Getenv("TERM") != "dumb", time.Now)
	if f.verify {
		x.Observe = observer(cmd.Context(), f.keep)
	}
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
	text, err := format.ReadOwn(filepath.Dir(path), filepath.Base(path), 1<<20)
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
		return format.WriteOwn(dir, name, func(w io.Writer) error { _, err := w.Write(text); return err })
	}
	env, err := json.MarshalIndent(map[string]any{"go": runtime.Version(), "os": runtime.GOOS, "arch": runtime.GOARCH, "cpus": runtime.NumCPU(),
		"version": buildVersion(), "config_sha256": x.ConfigSHA, "policy": x.flags.policy}, "", " ")
	if err != nil {
		return err
	}
	for _, c := range s.Changed() {
		fmt.Fprintln(x.Out, "config", report.Printable(c))
	}
	return errors.Join(write("effective_config.yaml", s.YAML()), write("effective_config.json", append(s.JSON(), '\n')), write("env.json", append(env, '\n')))
}

// load opens the model of a run and makes it trainable: all of it, or an adapter if lora has a rank. Of o it takes the value head
// and whether the base is quantised.
func (x *session) load(name string, l train.LoRA, seed uint64, o bind.Options) error {
	fast, err := x.flags.accelerated()
	if err != nil {
		return err
	}
	o.Seed = seed
	if fast {
		err = x.loadAccelerated(name, l, o)
	} else {
		err = x.loadReference(name, l, o)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("model.name: %w%s", err, near(name, bind.EmbeddedNames()))
	case err != nil:
		return err
	}
	if l.R > 0 && x.Run != nil { // a worker has no folder
		if err := x.writeBase(name, seed); err != nil {
			return err
		}
	}
	switch {
	case x.From == nil:
		return nil
	case x.From.Manifest.BaseFingerprint != x.Policy.Fingerprint():
		return usageError{fmt.Sprintf("%s was trained on other base weights than those of %s", x.From.Path, name)}
	}
	if was := x.From.Manifest.Variant; was != x.Policy.Variant() {
		warn("%s was computed by %s, and %s goes on: it rounds otherwise, so the run ends in other bytes than without the break", x.From.Path, was, x.Policy.Variant())
	}
	return nil
}

// adapter adds an adapter to the options, if lora has a rank.
func adapter(o *bind.Options, c model.Config, name string, l train.LoRA) (err error) {
	if l.R == 0 {
		return nil
	}
	if o.Adapter, err = bind.NewAdapter(c, l.R, l.Alpha, l.Targets, o.Seed); err != nil {
		return usageError{err.Error()}
	}
	o.PEFT = bind.AdapterConfig(name, l)
	return nil
}

func (x *session) loadReference(name string, l train.LoRA, o bind.Options) error {
	m, extra, err := bind.Open(name, o.Seed)
	if err != nil {
		return err
	}
	x.notes(m.Notes)
	text, err := bind.NewText(m)
	if err != nil {
		return err
	}
	o.Extra, o.Fingerprint = extra, m.Fingerprint
	if err := adapter(&o, m.Base.Config, name, l); err != nil {
		return err
	}
	policy, err := bind.NewLanguage(m.Base, o)
	if err != nil {
		return usageError{err.Error()}
	}
	if o.Int8 {
		fmt.Fprintf(x.Out, "int8: %d layers are quantised row by row\n", len(policy.Codes))
	}
	x.Tokenizer, x.Policy = text, policy
	x.embeddings = func() ([]float64, int) { return bind.Embeddings(m.Base), m.Base.Config.Hidden }
	return nil
}

// loadAccelerated is load with the kernels: the base is quantised from its file, tensor by tensor.
func (x *session) loadAccelerated(name string, l train.LoRA, o bind.Options) error {
	base, err := bind.OpenBase(name, o.Seed)
	if err != nil {
		return err
	}
	defer base.Close()
	x.notes(base.Notes)
	o.Extra = base.Extra
	if err := adapter(&o, base.Reference(), name, l); err != nil {
		return err
	}
	x.Tokenizer = base.Text
	table, _ := base.Config.Module(arch.Embedding, -1)
	var device cuda.Device
	if x.flags.policy == bind.GPU || x.flags.policy == bind.Simulator {
		if device, err = bind.OpenDevice(x.flags.policy); err != nil {
			return fmt.Errorf("--policy %s: %w", x.flags.policy, err)
		}
	}
	if x.flags.beside {
		if device != nil {
			x.lockstep, err = bind.NewLockstepOn(base, device, o)
		} else {
			x.lockstep, err = bind.NewLockstep(base, x.flags.mode, o)
		}
		if err != nil {
			return refusal(err)
		}
		x.Policy, x.Optimizer = x.lockstep, x.lockstep.Optimizer
		x.embeddings = func() ([]float64, int) { return x.lockstep.Weight(table.Weight().Name), table.Out }
		return nil
	}
	if device != nil {
		policy, err := bind.NewOnDevice(base, device, o)
		if err != nil {
			return refusal(err)
		}
		fmt.Fprintf(x.Out, "policy: %s on %s\n", policy.Variant(), policy.Device())
		x.Policy, x.embeddings = policy, policy.Embeddings
		return nil
	}
	tighten(base.Config)
	policy, err := bind.NewAccelerated(base, x.flags.mode, o)
	if err != nil {
		return err
	}
	fmt.Fprintf(x.Out, "policy: %s, a base of %.1f MB\n", policy.Variant(), float64(policy.Bytes())/1e6)
	x.Policy = policy
	x.embeddings = func() ([]float64, int) { return policy.Weight(table.Weight().Name), table.Out }
	return nil
}

// refusal makes a model that the simulator does not take a matter of usage.
func refusal(err error) error {
	if cli.Is[bind.TooLargeError](err) {
		return usageError{err.Error()}
	}
	return err
}

// compared ends a run: with --lockstep it prints what was compared, however the run ended. Kernels that part from the reference are a failure.
func (x *session) compared(ended error) error {
	x.done = ended == nil
	if x.lockstep == nil {
		return ended
	}
	err := x.lockstep.Report(x.Out)
	if cli.Is[bind.PartedError](err) {
		err = failedError{err.Error()}
	}
	if ended != nil {
		return ended
	}
	return err
}

// tighten has garbage collected before it is a tenth of what is alive, not as much again: on the kernels nearly all memory is in few pieces
// without pointers, which cost the collector nothing. Small models, whose heaps are small, stay with what GOGC says, and so does whoever sets it.
func tighten(c arch.Config) {
	weights := 0
	for _, t := range c.Tensors() {
		weights += format.Elements(t.Shape)
	}
	if weights > 1<<25 && os.Getenv("GOGC") == "" {
		debug.SetGCPercent(10)
	}
}

func (x *session) notes(list []string) {
	for _, note := range list {
		fmt.Fprintln(x.Out, "note", note)
	}
}

// questions reads the rows of a data set.
func questions(name string, most, count int, seed uint64) ([]dataset.Question, error) {
	if name == "additions" {
		return dataset.Additions(rng.New(seed, 4), cmp.Or(count, 2000), most), nil
	}
	if name == "words" {
		return dataset.WordLists(rng.New(seed, 4), cmp.Or(count, 2000)), nil
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
	switch {
	case err == train.ErrInterrupted:
		return fmt.Errorf("%w: the run is saved", cli.ErrInterrupted)
	case errors.Is(err, train.ErrInterrupted):
		return fmt.Errorf("%w%s", cli.ErrInterrupted, strings.TrimPrefix(err.Error(), train.ErrInterrupted.Error()))
	}
	return err
}
