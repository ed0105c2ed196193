package main

import (
	"cmp"
	"strings"

	"github.com/spf13/cobra"

	"plumbline/internal/bind"
	"plumbline/internal/config"
	"plumbline/verify/check"
)

// near is the end of a message about a word that is none of the known ones: the nearest of them, where one is near.
func near(word string, known []string) string {
	if n := check.Similar(word, known); n != "" {
		return "; did you mean " + n + "?"
	}
	return ""
}

// policies are what --policy takes.
var policies = []string{policyReference, policyAccel, "accel:w8a16", "accel:w8a8", "accel:llm.int8", "accel:f32", "accel:bf16", bind.GPU, bind.Simulator}

// sampleModels are the models that train sample takes by name.
func sampleModels() []string { return append(bind.EmbeddedNames(), bind.TinyMasked, bind.TinyJudge) }

// complete offers the shell the keys of a trainer as arguments, the configurations that are its own as --config, and the policies. of is that
// of withKeys.
func (f *trainFlags) complete(cmd *cobra.Command, of func(trainer string) (keys *config.Settings, fallback string)) {
	keys := func(name string) *config.Settings {
		s, fallback := of(trainerOf(name, nil))
		s.Open = openConfig
		if s.ReadFile(cmp.Or(name, fallback)) != nil || s.Resolve() != nil {
			return nil
		}
		return s
	}
	cmd.ValidArgsFunction = func(*cobra.Command, []string, string) (list []string, _ cobra.ShellCompDirective) {
		if s := keys(f.config); s != nil {
			for _, key := range s.Fields() {
				about, _, _ := strings.Cut(key.Doc, "\n")
				list = append(list, key.Name+"=\t"+about)
			}
		}
		return list, cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
	}
	offer(cmd, "config", func() (list []string) {
		for _, name := range configNames() {
			if keys(name) != nil {
				list = append(list, name)
			}
		}
		return list
	})
	offer(cmd, "policy", func() []string { return policies })
	offer(cmd, "resume", func() []string { return []string{"auto", "never"} })
}

// offer completes a flag with names, or the path of a file.
func offer(cmd *cobra.Command, flag string, names func() []string) {
	_ = cmd.RegisterFlagCompletionFunc(flag, func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return names(), cobra.ShellCompDirectiveDefault
	})
}
