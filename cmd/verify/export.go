package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"plumbline/cmd/verify/export"
	"plumbline/verify/check"
)

// exportTarget is one file that export prints.
type exportTarget struct {
	name, file string
	what       string
}

var exportTargets = []exportTarget{
	{"trl", "plumbline_trl.py", "GRPOTrainer of TRL 1.16.0: install(GRPOTrainer)"},
	{"trl-rloo", "plumbline_trl_rloo.py", "RLOOTrainer of TRL 1.16.0: install(RLOOTrainer)"},
	{"trl-dpo", "plumbline_trl_dpo.py", "DPOTrainer of TRL 1.16.0: install(DPOTrainer)"},
	{"verl", "plumbline_verl.py", "ppo_loss and value_loss of verl 0.9.1, by model.external_lib"},
	{"openrlhf", "plumbline_openrlhf.py", "actor and critic of OpenRLHF 0.11.2: install(DeepspeedStrategy)"},
	{"torch", "plumbline_torch.py", "any loop in PyTorch: dump(folder, step, options=…, **tensors)"},
	{"pytest", "test_ppo_golden.py", "tests of the PPO tutorial's five functions with golden vectors"},
}

func newExport() *cobra.Command {
	var help strings.Builder
	names := make([]string, len(exportTargets))
	for i, t := range exportTargets {
		names[i] = t.name
		fmt.Fprintf(&help, "  %-10s %s (save as %s)\n", t.name, t.what, t.file)
	}
	return &cobra.Command{
		Use:   "export " + strings.Join(names, "|"),
		Short: "prints the hook that makes a trainer write dumps, or a pytest file with golden vectors",
		Long: `verify export prints a Python file of at most 49 lines that needs torch and safetensors only. Saved beside the training script
it dumps what the losses were made of, with ∂loss/∂logp, into dumps/run-…, a new folder for each run, for verify dump dumps. A dump that cannot be written (full
disk, a name that is taken, another release) is a warning and training goes on; strict raises.

` + help.String() + `
Each says at its top how it is put to use.`,
		Example: `  verify export trl > plumbline_trl.py      # then: from plumbline_trl import install; install(GRPOTrainer)
  verify dump dumps --profile trl-grpo@1.16
  verify export pytest > test_ppo_golden.py && pytest test_ppo_golden.py`,
		ValidArgs: names,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError{fmt.Sprintf("export takes one of %s, not %d arguments", strings.Join(names, ", "), len(args))}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, t := range exportTargets {
				if t.name == args[0] {
					text, err := export.Files.ReadFile(t.file)
					if err == nil {
						_, err = cmd.OutOrStdout().Write(text)
					}
					return err
				}
			}
			return usageError{fmt.Sprintf("export %q: want one of %s; did you mean %q?", args[0], strings.Join(names, ", "), check.Nearest(args[0], names))}
		},
	}
}
