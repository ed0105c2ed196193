package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"plumbline/internal/bind"
	"plumbline/internal/format"
	"plumbline/internal/train"
)

func newExport() *cobra.Command {
	var from, to string
	cmd := &cobra.Command{
		Use:   "export --model DIR --output DIR",
		Short: "write a masked model, a judge or the encoder of train arc as a folder that transformers loads",
		Long: `export writes a model as a folder that transformers loads with from_pretrained, where transformers has a class that computes the same:

  the masked model of train grpo    GPTNeoXForCausalLM, not causal (is_causal: false, transformers 5)
  its judge                         GPTNeoXForTokenClassification, one label: sigmoid of the logit at the first token
  the text encoder of train arc     Qwen2Model

The rest of the agent of train arc, convolutions over grids and a policy of prompts, is of no class there and is not written. The
models of train ppo, sft and grpo_causal and the adapters of train shielded need no export: final/ is what transformers and PEFT read.`,
		Example: `  train export --model outputs/grpo --output masked
  train export --model tiny_judge --output judge`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for flag, value := range map[string]string{"model": from, "output": to} {
				if value == "" {
					return usageError{fmt.Sprintf("--%s is missing (train export --help)", flag)}
				}
			}
			e, err := bind.ExportFolder(ofRun(from))
			if err == nil {
				err = e.Write(to)
			}
			if bad, ok := errors.AsType[*train.ConfigError](err); ok {
				return usageError{bad.Error()}
			}
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			fmt.Fprintf(out, "%s: %s\n", e.Class, e.Note)
			for _, name := range slices.Sorted(maps.Keys(e.Files)) {
				fmt.Fprintf(out, "  %s  %d bytes\n", name, len(e.Files[name]))
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&from, "model", "", "folder of a run or of its final model, or tiny_masked, tiny_judge: the embedded ones")
	offer(cmd, "model", func() []string { return []string{bind.TinyMasked, bind.TinyJudge} })
	cmd.Flags().StringVar(&to, "output", "", "folder to write, empty or not there")
	return cmd
}

// writeBase writes a base that is part of the program into the folder of the run, under the name that adapter_config.json has for it: from
// within that folder PEFT finds it.
func (x *session) writeBase(name string, seed uint64) error {
	files, err := bind.EmbeddedBase(name, seed)
	if err != nil {
		return err
	}
	for _, file := range slices.Sorted(maps.Keys(files)) {
		if err := format.WriteOwn(x.Run.Path(), name+"/"+file, func(w io.Writer) error { _, err := w.Write(files[file]); return err }); err != nil {
			return err
		}
	}
	return nil
}
