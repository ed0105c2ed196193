package main

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"plumbline/cmd/internal/cli"
	"plumbline/internal/arch"
	"plumbline/internal/format"
	"plumbline/internal/format/hf"
	"plumbline/verify/check"
	"plumbline/verify/checkpoint"
	"plumbline/verify/report"
	"plumbline/verify/vram"
)

func newVRAM() *cobra.Command {
	var (
		out                         output
		s                           vram.Setup
		model, stack, limit, device string
		reference, cache, smiOutput string
		critic, reward              string
	)
	cmd := &cobra.Command{
		Use:   "vram --model NAME|DIR --batch B --seq T [--int8] [--lora-r R --targets A,B] [--checkpointing] [--limit 18GB]",
		Short: "plans the device memory of a run: every item as a formula, for rollout and update, against a limit",
		Long: `verify vram adds up what a fine-tuning run allocates on one device, from shapes alone: no device and no weights are
needed. --stack hf models transformers, PEFT and bitsandbytes, where activations and workspace are estimates with a range;
--stack plumbline models this project's trainer: the memory of the host on the reference path and on
the kernels of the processor, that of a device with --policy cuda.

--seq is prompt and response together. --model is a name or a folder with config.json. A limit in GB fails beyond GiB and
warns between the two readings. --measured takes what nvidia-smi has sampled during the run:

  nvidia-smi --query-gpu=index,memory.used,memory.total --format=csv -l 1 > smi.csv`,
		Example: `  verify vram --model gpt-j-6b --int8 --lora-r 16 --targets q_proj,v_proj --batch 4 --seq 424 --limit 18GB
  verify vram --model gpt-j-6b --int8 --lora-r 16 --targets q_proj,v_proj --batch 4 --seq 424 --limit 18GB --checkpointing -v
  verify vram --model out/base --lora-r 8 --targets q_proj --batch 8 --seq 1024 --stack plumbline
  verify vram --model qwen1.5-1.8b-chat --batch 2 --seq 512 --limit 24GiB --measured smi.csv`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			started := time.Now()
			if err := out.validate(names(vram.Suite.Infos())); err != nil {
				return err
			}
			r := &report.Report{Command: "vram", Repeat: repeatCommand(cmd)}
			s.Stack = vram.Stack(stack)
			s.Copy, s.KVInt8 = reference == "copy", cache == "int8"
			switch {
			case s.GPUs < 1: // of the library's setup 0 is one
				return usageError{fmt.Sprintf("--gpus %d: want a number from 1 to 1024", s.GPUs)}
			case model == "":
				return s.Validate()
			case !slices.Contains([]string{"adapter", "copy"}, reference):
				return usageError{fmt.Sprintf("--reference %q: want adapter (the base with its adapter off) or copy%s", reference, near(reference, []string{"adapter", "copy"}))}
			case !slices.Contains([]string{"16", "int8"}, cache):
				return usageError{fmt.Sprintf("--kv %q: want 16 (bits, as the weights) or int8", cache)}
			}
			in := &vram.Input{}
			var err error
			if limit != "" {
				if in.Limit, err = vram.ParseLimit(limit); err != nil {
					return err
				}
			}
			undetermined := func(subject, reason string) error {
				r.Results = []check.Result{{Check: "plan/update", Subject: subject, Verdict: check.Undetermined, Demanded: true, Reason: reason}}
				r.Exit = check.Exit(r.Results, out.policy())
				return out.emit(cmd, r, started)
			}
			for _, m := range []struct {
				name string
				to   **arch.Model
			}{{model, &s.Model}, {critic, &s.Critic}, {reward, &s.Reward}} {
				switch t := unplanned(m.name); {
				case m.name == "":
				case m.name == "same":
					*m.to = s.Model
				case t != "":
					return undetermined(m.name, fmt.Sprintf("model_type %q has no formulas here; those of %s have", t, strings.Join(vram.Types, ", ")))
				default:
					if *m.to, err = checkpoint.FindModel(m.name); err != nil {
						return err
					}
				}
			}
			if device != "" {
				d, err := vram.ParseLimit(device)
				if err != nil {
					return err
				}
				s.Bytes = d.Bytes
			}
			switch {
			case s.DType == "" && s.Autocast != "":
				s.DType = "float32"
			case s.DType == "":
				s.DType = storedType(model)
			}
			if err := s.Validate(); err != nil {
				if cli.Is[*vram.UnmeasuredError](err) {
					return undetermined(model, err.Error())
				}
				return err
			}
			if smiOutput != "" {
				if in.Measured, err = readSamples(smiOutput, r); err != nil {
					return err
				}
			}
			in.Plan = vram.New(s)
			if r.Results, err = vram.Suite.Run(in, out.sel); err != nil {
				return err
			}
			r.Exit = check.Exit(r.Results, out.policy())
			describePlan(r, in, out.verbose || out.format != "human")
			if limit == "" && smiOutput == "" && r.Exit == check.ExitNothing && len(out.sel.Select)+len(out.sel.Require) == 0 {
				r.Lines = append(r.Lines, "no --limit: the plan is not judged, and nothing was checked")
			}
			return out.emit(cmd, r, started)
		},
	}
	f := cmd.Flags()
	f.StringVar(&model, "model", "", "a known name (gpt-j-6b) or a folder with config.json")
	f.StringVar(&stack, "stack", string(vram.HF), "whose allocations: hf or plumbline")
	f.StringVar(&s.Policy, "policy", "", "what computes in the plumbline stack: reference, accel (accel:w8a16, accel:w8a8, accel:llm.int8, accel:bf16, accel:f32) or cuda (default: accel with an adapter, else reference)")
	f.BoolVar(&s.Int8, "int8", false, "the linear layers of the base are int8")
	f.StringVar(&s.DType, "dtype", "", "type of the weights that are not int8: float16, bfloat16, float32 (default: float32 with --autocast, else the folder's, else float16)")
	f.StringVar(&s.Autocast, "autocast", "", "torch.autocast over float32 weights: bfloat16 or float16 (bf16=True, fp16=True of the Trainer)")
	f.IntVar(&s.Rank, "lora-r", 0, "rank of the LoRA adapter; 0 trains every weight")
	listVar(f, &s.Targets, "targets", "modules with an adapter")
	f.StringVar(&s.Optimiser, "optimizer", "adamw", "adamw, adamw8bit or sgd")
	f.IntVar(&s.Batch, "batch", 0, "sequences of one forward and backward pass")
	f.IntVar(&s.Seq, "seq", 0, "tokens of a sequence, prompt and response")
	f.IntVar(&s.MaxNew, "max-new-tokens", 0, "of them generated at most; 0: not known")
	f.IntVar(&s.Rollout, "rollout-batch", 0, "sequences generated at a time; 0: as --batch")
	f.BoolVar(&s.Checkpointing, "checkpointing", false, "gradient checkpointing")
	f.IntVar(&s.Chunk, "logits-chunk", 0, "tokens whose logits are held at a time; 0: all (hf), 256 (plumbline)")
	f.StringVar(&cache, "kv", "16", "the KV cache: 16 (bits, as the weights) or int8")
	f.StringVar(&reference, "reference", "adapter", "the reference model: adapter (the base with its adapter off) or copy")
	f.StringVar(&critic, "critic", "", "the critic of PPO: a model as for --model, or same")
	f.IntVar(&s.CriticRank, "critic-lora-r", 0, "rank of an adapter of the critic on --targets; 0 trains all its weights")
	f.StringVar(&reward, "reward", "", "the reward model: a model as for --model, or same")
	f.StringVar(&s.Attention, "attention", "", "eager or sdpa (default: eager for gptj, else sdpa)")
	f.BoolVar(&s.NF4, "nf4", false, "the linear layers of the base are in four bits (bitsandbytes)")
	f.StringVar(&s.Head, "head", "", "trl-fused: logits in tiles, as TRL's GRPO computes them on a device (trl-fused-torch: on the CPU); else all at once")
	f.Float64Var(&s.VLLM, "vllm", 0, "gpu_memory_utilization of a vLLM on the same device (needs --device)")
	f.StringVar(&device, "device", "", "memory of the device, for --vllm: 80GiB")
	f.StringVar(&s.DeviceMap, "device-map", "", "auto, if the loader is told so")
	f.IntVar(&s.GPUs, "gpus", 1, "devices that the process sees")
	f.StringVar(&limit, "limit", "", "memory that there is: 18GB, 16GiB, 17166MiB")
	f.StringVar(&smiOutput, "measured", "", "samples of memory.used that nvidia-smi wrote with --format=csv")
	out.register(cmd)
	return cmd
}

// unplanned returns the model_type of a folder whose config.json can be read and whose memory has no formulas, else "".
func unplanned(model string) string {
	if info, err := os.Stat(model); err != nil || !info.IsDir() {
		return ""
	}
	if c, err := hf.ReadConfig(model); err == nil && c.Type != "" && !slices.Contains(vram.Types, c.Type) {
		return c.Type
	}
	return ""
}

// storedType returns the type that the config.json of a folder names, if it is one that can be planned.
func storedType(model string) string {
	if info, err := os.Stat(model); err != nil || !info.IsDir() {
		return ""
	}
	c, err := hf.ReadConfig(model)
	if err != nil || vram.Widths[c.DType] == 0 {
		return ""
	}
	return c.DType
}

// readSamples reads a file of nvidia-smi and lists it among the inputs.
func readSamples(path string, r *report.Report) (*vram.Measurement, error) {
	f, err := format.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	sum := sha256.New()
	m, err := vram.ReadCSV(io.TeeReader(f, sum), path)
	if err != nil {
		return nil, err
	}
	r.Inputs = append(r.Inputs, report.Input{Role: "measured", Path: path, Size: f.Size, SHA256: fmt.Sprintf("%x", sum.Sum(nil)), What: fmt.Sprintf("%d samples of %d devices", m.Samples, len(m.Devices))})
	r.Lines = append(r.Lines, m.Notes...)
	return m, nil
}

// describePlan adds the items of both phases and the advice.
func describePlan(r *report.Report, in *vram.Input, formulas bool) {
	p := in.Plan
	for _, phase := range vram.Phases {
		t := p.Total(phase)
		list := report.Section{Title: phase.String() + " phase", Whole: true}
		for _, i := range p.Items {
			if !i.In[phase] {
				continue
			}
			line := fmt.Sprintf("%-36s %s", i.Name, sizes(i.Bytes))
			if i.Low != i.High {
				line += fmt.Sprintf("  %.2f to %.2f", i.Low/1e9, i.High/1e9)
			}
			if formulas {
				line += "  = " + i.Formula
			}
			list.Items = append(list.Items, line)
		}
		list.Items = append(list.Items, fmt.Sprintf("%-36s %s  %.2f to %.2f", "total", sizes(t.Bytes), t.Low/1e9, t.High/1e9))
		r.Lists = append(r.Lists, list)
	}
	over := r.Exit != check.ExitPass && r.Exit != check.ExitNothing
	advice := report.Section{Title: "what would need less, from the most that is saved", Whole: over}
	for _, a := range p.Advise(in.Limit) {
		line := fmt.Sprintf("%-32s saves %6.2f GB, then %6.2f GB", a.Flag, a.Saved/1e9, a.After.Bytes/1e9)
		if in.Limit.Bytes > 0 && a.After.Bytes <= in.Limit.Bytes {
			line += " (fits)"
		}
		advice.Items = append(advice.Items, line+"  "+a.What)
	}
	advice.Items = append(advice.Items, p.Setup.Conflict()...)
	r.Lists = append(r.Lists, advice)
}

func sizes(bytes float64) string {
	return fmt.Sprintf("%9.3f GB %9.3f GiB", bytes/1e9, bytes/(1<<30))
}
