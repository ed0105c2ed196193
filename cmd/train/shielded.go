package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"plumbline/cmd/internal/cli"
	"plumbline/internal/arch"
	"plumbline/internal/bind"
	"plumbline/internal/config"
	"plumbline/internal/dataset"
	"plumbline/internal/format"
	"plumbline/internal/train"
	"plumbline/verify/check"
	"plumbline/verify/checkpoint"
	"plumbline/verify/vram"
)

// The flags of the source's scripts, as the keys that they set.
var shieldedFlags = []struct{ flag, key string }{
	{"dataset", "dataset"}, {"steps", "steps"}, {"seed", "seed"}, {"lr", "lr"}, {"kl_beta", "kl_beta"},
}

func newShielded() *cobra.Command {
	var f trainFlags
	var cfg string
	var int8, noWandb, verifyOnly, noProjection bool
	values := make([]string, len(shieldedFlags))
	cmd := &cobra.Command{
		Use:   "shielded [--config FILE] [key=value ...]",
		Short: "PPO on explanations with an adapter whose updates are kept out of a protected subspace",
		Long: `train shielded runs the shielded PPO system: explanations of recommended items, an int8 base with a LoRA adapter, and updates
from which the part in the span of a basis is taken away. Without a configuration it is the toy run on the embedded model.`,
		Example: `  train shielded
  train shielded --verify steps=5 output_dir=outputs/try
  verify projection --basis outputs/shielded_toy/basis.safetensors --adapter outputs/shielded_toy/final --init outputs/shielded_toy/lora_init
  train shielded --config shielded model.name=DIR projection.basis=Q.safetensors`,
		RunE: func(cmd *cobra.Command, overrides []string) error {
			var c train.Shielded
			s := c.Settings()
			var flags []string
			for i, a := range shieldedFlags {
				if cmd.Flags().Changed(a.flag) {
					flags = append(flags, a.key+"="+values[i])
				}
			}
			for _, b := range []struct {
				flag, value string
				on          bool
			}{{"int8", "int8=" + strconv.FormatBool(int8), cmd.Flags().Changed("int8")}, {"no-wandb", "no_wandb=true", noWandb},
				{"verify-only", "verify_only=true", verifyOnly}, {"no-projection", "projection.mode=off", noProjection}} {
				if b.on {
					flags = append(flags, b.value)
				}
			}
			if cfg != "" {
				f.config = cfg
			}
			if err := once(flags, overrides); err != nil {
				return err
			}
			if err := f.settle(s, "shielded_toy", append(flags, overrides...)); err != nil {
				return err
			}
			if c.GPUs == 0 {
				var err error
				if c.GPUs, err = train.VisibleDevices(os.Getenv("CUDA_VISIBLE_DEVICES")); err != nil {
					return usageError{err.Error()}
				}
			}
			if err := c.Check(warn); err != nil {
				return usageError{err.Error()}
			}
			if err := planMemory(cmd, &c); err != nil {
				return err
			}
			env := train.ShieldedEnv{}
			var err error
			if env.Prompts, err = prompts(&c); err != nil {
				return err
			}
			f.dumps(&c.Dump)
			if err := f.trainable(c.LoRA); err != nil {
				return err
			}
			x, err := f.start(cmd, c.OutputDir, c.Keep, s, c.WithoutEffect())
			if err != nil {
				return err
			}
			defer x.close()
			if err := x.loadShielded(&c); err != nil {
				return err
			}
			if env.Basis, err = x.basis(&c, env.Prompts); err != nil {
				return err
			}
			if c.VerifyOnly {
				fmt.Fprintln(cmd.OutOrStdout(), "verify_only: configuration, basis, targets and memory are in order")
				return nil
			}
			if err := x.distribute(cmd.Context(), c.Cluster, c.Model, c.LoRA, c.Seed, bind.Options{Int8: c.Int8}); err != nil {
				return err
			}
			env.Env = x.Env
			_, err = c.Train(cmd.Context(), env)
			return ended(stopped(x.compared(err)))
		},
	}
	f.bind(cmd)
	f.bindDumps(cmd)
	f.bindCluster(cmd)
	f.withKeys(cmd, func(string) (*config.Settings, string) { return new(train.Shielded).Settings(), "shielded_toy" })
	for i, a := range shieldedFlags {
		cmd.Flags().StringVar(&values[i], a.flag, "", "the key "+a.key)
	}
	cmd.Flags().StringVar(&cfg, "cfg", "", "as --config")
	cmd.Flags().BoolVar(&int8, "int8", true, "the key int8; --int8=false leaves the base as it is")
	cmd.Flags().BoolVar(&noWandb, "no-wandb", false, "has no effect: metrics go to metrics.jsonl")
	cmd.Flags().BoolVar(&verifyOnly, "verify-only", false, "the key verify_only: look at configuration, basis, targets and memory, and train nothing")
	cmd.Flags().BoolVar(&noProjection, "no-projection", false, "projection.mode=off: an ablation")
	return cmd
}

// stopped adds the advice for numbers that are not finite.
func stopped(err error) error {
	if cli.Is[*train.NotFiniteError](err) {
		return fmt.Errorf("%w; a smaller lr, or max_grad_norm, holds it", err)
	}
	return err
}

// planMemory prints what a run with these sizes would need on a device, before anything is loaded.
func planMemory(cmd *cobra.Command, c *train.Shielded) error {
	m, err := planned(c.Model)
	if err != nil || m == nil {
		return err
	}
	targets := func() (names []string) {
		for _, l := range m.Adaptable() {
			names = append(names, l.Last())
		}
		return names
	}()
	for _, t := range c.LoRA.Targets {
		if !slices.Contains(targets, t) {
			near := m.Alike(t)
			if near == "" {
				near = check.Nearest(t, targets)
			}
			return usageError{fmt.Sprintf("lora.targets: no module of %s is called %s (H4a: PEFT drops it in silence when another target matches); did you mean %s? It has %s", c.Model, t, near, strings.Join(targets, ", "))}
		}
	}
	dtype := c.DType
	if dtype == "auto" {
		dtype = "" // that of the checkpoint: float16 for the known models
	}
	set := vram.Setup{Model: m, Stack: vram.HF, Int8: c.Int8, DType: dtype, Rank: c.LoRA.R, Targets: c.LoRA.Targets, Optimiser: map[string]string{"adam": "adamw", "sgd": "sgd"}[c.Optimizer],
		Batch: c.Micro, Seq: c.MaxPrompt + c.MaxNew, MaxNew: c.MaxNew, Rollout: c.SimBatch, Checkpointing: c.Checkpointing, DeviceMap: c.DeviceMap, GPUs: max(1, c.GPUs)}
	if err := set.Validate(); err != nil {
		return usageError{err.Error()}
	}
	plan := vram.New(set)
	phase, peak := plan.Peak()
	fmt.Fprintf(cmd.OutOrStdout(), "memory plan: base %s, rollout %s, update %s\n", vram.Size(plan.Base()), vram.Size(plan.Total(vram.Rollout).Bytes), vram.Size(plan.Total(vram.Update).Bytes))
	if c.MemoryLimit == "" {
		return nil
	}
	limit, err := vram.ParseLimit(c.MemoryLimit)
	if err != nil {
		return usageError{"memory_limit: " + err.Error()}
	}
	if peak.Bytes > .95*limit.Bytes {
		advice := "max_new_tokens=20, gradient_checkpointing=true, a smaller micro_batch_size"
		if !c.Int8 {
			advice += `, or device_map="auto" over several devices`
		}
		warn("the memory plan (A4), %s in the %s, is above 0.95 of memory_limit %s: %s", vram.Size(peak.Bytes), phase, c.MemoryLimit, advice)
	}
	return nil
}

// planned returns the sizes of a model by its name, or of its folder; nil where they are not known.
func planned(name string) (*arch.Model, error) {
	if name == bind.TinyGPTJ || name == bind.TinyGPTJInit {
		return &arch.Model{Name: name, Config: arch.Config{Type: "gptj", Layers: 2, Hidden: 64, Heads: 4, KVHeads: 4, HeadDim: 16, Inner: 128, Vocab: 257, MLPBias: true, HeadBias: true}}, nil
	}
	m, err := checkpoint.FindModel(name)
	if err != nil {
		return nil, nil // not a folder with config.json: what is wrong with it is said when it is opened
	}
	return m, nil
}

// maxPrompts bounds a file of prompts.
const maxPrompts = 64 << 20

// prompts returns the lines of the file, or the questions of the catalogue.
func prompts(c *train.Shielded) ([]string, error) {
	if c.Prompts == "" {
		return dataset.ItemPrompts(c.Dataset), nil
	}
	text, err := format.ReadFile(c.Prompts, maxPrompts)
	if err != nil {
		return nil, err
	}
	var list []string
	for s := bufio.NewScanner(bytes.NewReader(text)); s.Scan(); {
		if line := strings.TrimSpace(s.Text()); line != "" {
			list = append(list, line)
		}
	}
	if len(list) == 0 {
		return nil, usageError{c.Prompts + " holds no prompts"}
	}
	return list, nil
}

// loadShielded opens the model, quantises its base and adds the adapter.
func (x *session) loadShielded(c *train.Shielded) error {
	if _, err := os.Stat(c.Model); errors.Is(err, fs.ErrNotExist) && slices.Contains(arch.Names(), c.Model) {
		return usageError{fmt.Sprintf("model.name %s: only its sizes are known here, and the memory plan is all that they give; the folder with its weights is wanted, or model.name=%s", c.Model, bind.TinyGPTJ)}
	}
	return x.load(c.Model, c.LoRA, c.Seed, bind.Options{Int8: c.Int8, Checkpointing: c.Checkpointing})
}

// basis makes the basis if it is to be made, and reads it from its file: what verify projection reads is what the run is shielded by.
func (x *session) basis(c *train.Shielded, prompts []string) (*train.Basis, error) {
	p := &c.Projection
	path := p.Basis
	if path == "" {
		var err error
		if path, err = format.Own(c.OutputDir, "basis.safetensors"); err != nil {
			return nil, err
		}
	}
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) && p.Mode == train.ProjectOff && c.BasisFrom == "" {
		return nil, nil // nothing to measure by
	}
	if c.BasisFrom != "" {
		if filepath.Ext(path) != ".safetensors" {
			return nil, usageError{fmt.Sprintf("projection.basis %s: basis.from=%s makes a .safetensors file; name one, or say basis.from= to read the basis that is there", path, c.BasisFrom)}
		}
		b, err := x.makeBasis(c, prompts)
		if err != nil {
			return nil, err
		}
		if c.BasisRank > b.K {
			warn("basis.rank %d: the basis has %d columns, since the vectors span no more or a quarter of the %d rows is reached (H4b)", c.BasisRank, b.K, b.D)
		}
		if p.Basis != "" { // named by the user, who may have made it
			switch same, err := b.IsIn(path, c.BasisFrom); {
			case errors.Is(err, fs.ErrNotExist):
			case err != nil:
				return nil, err
			case !same:
				return nil, usageError{fmt.Sprintf("projection.basis %s is there and is another basis than basis.from=%s makes, which would be written over it: say basis.from= to read it, or name another file", path, c.BasisFrom)}
			}
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return nil, err
		}
		if err := b.Write(path, c.BasisFrom); err != nil {
			return nil, err
		}
		fmt.Fprintf(x.Out, "basis: (%d, %d) %s from %s is in %s\n", b.D, b.K, b.Kind, c.BasisFrom, path)
	}
	kind := p.Kind
	if kind == "auto" {
		kind = ""
	}
	b, err := train.ReadBasis(path, kind, x.Policy.Params())
	if err != nil {
		return nil, err
	}
	if b.Repair != "" {
		warn("%s", b.Repair)
	}
	if b.K > b.D/4 {
		warn("%s: k = %d is above a quarter of d = %d (H4b): little is left that may change", path, b.K, b.D)
	}
	return b, nil
}

func (x *session) makeBasis(c *train.Shielded, prompts []string) (*train.Basis, error) {
	kind, params := c.Projection.Kind, x.Policy.Params()
	if kind == "auto" {
		kind = train.Side
	}
	var vectors []float64
	var d int
	var err error
	switch c.BasisFrom {
	case "embeddings":
		if kind == train.Flat {
			return nil, usageError{"basis.from embeddings makes a side basis: a flat one is of vectors of all LoRA numbers; basis.from=gradients, or a file"}
		}
		vectors, d = x.embeddings()
	case "gradients":
		vectors, d, err = train.ProtectedGradients(x.Policy, x.Tokenizer, prompts, kind)
	default:
		vectors, d, err = train.ReadVectors(c.BasisFrom)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, usageError{fmt.Sprintf("basis.from %q: want embeddings, gradients, or a file of vectors, and there is none of that name", c.BasisFrom)}
		}
		if err == nil && c.Projection.Kind == "auto" && d == total(params) {
			kind = train.Flat
		}
	}
	if err != nil {
		return nil, err
	}
	b, err := train.NewBasis(vectors, d, c.BasisRank)
	if err != nil {
		return nil, err
	}
	b.Kind = kind
	if kind == train.Flat {
		b.Order = train.Flattened(params)
	}
	return b, nil
}

func total(params []train.Param) (n int) {
	for _, p := range params {
		n += len(p.Data)
	}
	return n
}
