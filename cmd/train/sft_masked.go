package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"plumbline/internal/assets"
	"plumbline/internal/bind"
	"plumbline/internal/config"
	"plumbline/internal/dataset"
	"plumbline/internal/train"
)

// trainerOf returns what the key trainer says that a configuration is for: that of an override, of the file, or of the files under
// its defaults. "" if none says it; what is wrong with a file is said when it is read as a whole.
func trainerOf(name string, overrides []string) string {
	for _, o := range overrides {
		if value, is := strings.CutPrefix(strings.TrimPrefix(o, "--"), "trainer="); is {
			return value
		}
	}
	for range 8 { // a chain of defaults ends, or leads back to itself
		text, err := openConfig(name)
		if err != nil || filepath.Ext(name) == ".py" {
			return ""
		}
		file, err := config.YAML(string(text))
		if err != nil {
			return ""
		}
		if trainer, is := file.Tree["trainer"].(string); is {
			return trainer
		}
		under := file.Tree["defaults"]
		if list, is := under.([]any); is && len(list) > 0 {
			under = list[0]
		}
		next, is := under.(string)
		if !is {
			return ""
		}
		if beside := filepath.Join(filepath.Dir(name), next); readable(beside) {
			next = beside
		}
		name = next
	}
	return ""
}

func readable(name string) bool { _, err := openConfig(name); return err == nil }

// refused turns a setting that a trainer refuses into an error of the command line, and a run that failed its own check into that.
func refused(err error) error {
	if bad, ok := errors.AsType[*train.ConfigError](err); ok {
		return usageError{bad.Msg}
	}
	if failed, ok := errors.AsType[*train.FailedError](err); ok {
		return failedError{failed.Msg}
	}
	return ended(err)
}

// corpus returns the text of a data set by its name.
func corpus(name string) (string, error) {
	if name == train.CharDiffusion {
		return assets.Sonnets, nil
	}
	return dataset.ReadText(name)
}

func seconds() func() float64 {
	start := time.Now()
	return func() float64 { return time.Since(start).Seconds() }
}

// resident returns the MB of memory that the process holds, 0 where the system does not say.
func resident() float64 {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(text))
	if len(fields) < 2 {
		return 0
	}
	pages, err := strconv.ParseFloat(fields[1], 64)
	if err != nil {
		return 0
	}
	return pages * float64(os.Getpagesize()) / 1e6
}

// trainMasked runs the supervised training of a masked model.
func trainMasked(cmd *cobra.Command, f *trainFlags, overrides []string) error {
	if err := f.referenceOnly("a masked language model or a judge"); err != nil {
		return err
	}
	var c train.SFTMasked
	s := c.Settings()
	if err := f.settle(s, "sft_masked", overrides); err != nil {
		return err
	}
	text, err := corpus(c.Dataset)
	if err != nil {
		return err
	}
	env := train.MaskedEnv{Text: text, Clock: seconds(), Memory: resident}
	open := bind.OpenGenerator
	if c.Trainer == train.TrainerJudge {
		open = bind.OpenJudge
	}
	folder, err := open(c.Model, c.Seed)
	if err != nil {
		return refused(err)
	}
	m, err := bind.NewMasked(folder, nil)
	if err != nil {
		return refused(err)
	}
	env.Generator, env.Judge = m, m
	x, err := f.start(cmd, c.OutputDir, c.Keep, s, c.WithoutEffect())
	if err != nil {
		return err
	}
	defer x.close()
	env.Env = x.Env
	fmt.Fprintf(env.Out, "%s: %d characters of text\n", c.Trainer, len(text))
	_, err = c.Train(cmd.Context(), env)
	return refused(err)
}
