package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"plumbline/cmd/internal/cli"
	"plumbline/internal/bind"
	"plumbline/internal/config"
	"plumbline/internal/dataset"
	"plumbline/internal/rng"
	"plumbline/internal/train"
)

// The flags of the source's script, which are the keys that they set.
var arcFlags = []string{"epochs", "agent_lr", "qwen_lr", "device", "seed", "max_batches"}

func newArc() *cobra.Command {
	var f trainFlags
	values := make([]string, len(arcFlags))
	cmd := &cobra.Command{
		Use:   "arc [--config FILE] [key=value ...]",
		Short: "a solver of ARC grids with a refined prompt and an expected-free-energy loss",
		Long: `train arc runs the ARC grid solver: a text encoder makes a prompt of a task's examples, a policy refines it, a convolutional agent predicts
the grid. Without a configuration it is the small one on generated tasks. data is a JSON file or a folder of ARC tasks; a name that is
not there is looked for in ARC_DATA_DIR.`,
		Example: `  train arc
  train arc --epochs 10 --agent_lr 1e-3 --qwen_lr 5e-5 --device cuda --max_batches 500 output_dir=outputs/arc500
  train arc data=training.json model.channels=64 output_dir=outputs/arc1
  train arc grad_check=true max_batches=1 epochs=1 output_dir=outputs/arc_grad`,
		RunE: func(cmd *cobra.Command, overrides []string) error {
			if err := f.referenceOnly("the ARC agent"); err != nil {
				return err
			}
			var c train.Arc
			s := c.Settings()
			var flags []string
			for i, name := range arcFlags {
				if cmd.Flags().Changed(name) {
					flags = append(flags, name+"="+values[i])
				}
			}
			// --resume alone, as the source's script has it, and --resume DIR
			if cmd.Flags().Changed("resume") && len(overrides) > 0 && !strings.Contains(overrides[0], "=") {
				f.resume, overrides = overrides[0], overrides[1:]
			}
			if err := once(flags, overrides); err != nil {
				return err
			}
			if err := f.settle(s, "arc", append(flags, overrides...)); err != nil {
				return err
			}
			if err := c.Check(warn); err != nil {
				return refused(err)
			}
			tasks, err := arcTasks(&c, os.Getenv("ARC_DATA_DIR"))
			if err != nil {
				return err
			}
			agent, err := bind.NewArc(&c)
			if err != nil {
				return refused(err)
			}
			f.dumps(&c.Dump)
			if f.config == "" && f.resume == "auto" && !cmd.Flags().Changed("resume") && !given(overrides, "output_dir") && os.Getenv("TRAIN_OUTPUT_DIR") == "" {
				if c.OutputDir, err = freshFolder(c.OutputDir); err != nil {
					return err
				}
			}
			x, err := f.start(cmd, c.OutputDir, c.Keep, s, c.WithoutEffect())
			if err != nil {
				return err
			}
			defer x.close()
			if x.From != nil && x.From.Manifest.BaseFingerprint != agent.Fingerprint() {
				return usageError{fmt.Sprintf("%s was trained with other frozen weights than those of %s", x.From.Path, c.Encoder)}
			}
			err = c.Train(cmd.Context(), train.ArcEnv{Env: x.Env, Agent: agent, Tasks: tasks})
			if cli.Is[*train.NotFiniteError](err) {
				return fmt.Errorf("%w (D10, D19); %s", err, train.ExplodesAdvice)
			}
			return refused(err)
		},
	}
	f.bind(cmd)
	f.bindDumps(cmd)
	f.withKeys(cmd, func(string) (*config.Settings, string) { return new(train.Arc).Settings(), "arc" })
	cmd.Flags().Lookup("resume").NoOptDefVal = "auto"
	for i, name := range arcFlags {
		cmd.Flags().StringVar(&values[i], name, "", "the key "+name)
	}
	return cmd
}

// given reports whether overrides set a key.
func given(overrides []string, key string) bool {
	return slices.ContainsFunc(overrides, func(o string) bool { return strings.HasPrefix(strings.TrimPrefix(o, "--"), key+"=") })
}

// freshFolder returns the first of dir, dir-2, dir-3, … that holds no run that has ended: the command of the source document, given twice, is
// two runs. One that was killed is gone on with.
func freshFolder(dir string) (string, error) {
	name := dir
	for n := 2; ; n++ {
		if _, err := os.Lstat(filepath.Join(name, "final")); errors.Is(err, fs.ErrNotExist) {
			return name, nil
		} else if err != nil {
			return "", err
		}
		name = fmt.Sprintf("%s-%d", dir, n)
	}
}

// arcTasks reads the tasks of a run, or makes them.
func arcTasks(c *train.Arc, dir string) ([]dataset.ArcTask, error) {
	if c.Data == train.GeneratedTasks {
		return dataset.GeneratedArc(rng.New(c.Seed, streamArcTasks), c.Tasks), nil
	}
	path := c.Data
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) && dir != "" && !filepath.IsAbs(path) {
		path = filepath.Join(dir, path)
	}
	tasks, err := dataset.ReadArc(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, usageError{fmt.Sprintf("no ARC tasks: %v; data=FILE or data=DIR, ARC_DATA_DIR, or data=%s", err, train.GeneratedTasks)}
	}
	return tasks, err
}

// streamArcTasks numbers the random numbers of generated tasks.
const streamArcTasks = 50
