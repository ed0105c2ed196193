package main

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"plumbline/accel"
	"plumbline/internal/arch"
	"plumbline/verify/check"
	"plumbline/verify/checkpoint"
	"plumbline/verify/convention"
	"plumbline/verify/golden"
	"plumbline/verify/report"
	"plumbline/verify/runlog"
	"plumbline/verify/vram"
)

// values are the words that a flag takes, by its name or by "command flag", which goes first: what the shell offers. A word that ends in = or :
// wants more behind it.
func values() map[string]func(*cobra.Command) []string {
	fixed := func(list ...string) func(*cobra.Command) []string {
		return func(*cobra.Command) []string { return list }
	}
	ids := func(cmd *cobra.Command) (ids []string) {
		for _, g := range suites() {
			if g.Command == cmd.Name() {
				ids = append(ids, names(g.Checks)...)
			}
		}
		return ids
	}
	options := func(*cobra.Command) (list []string) {
		for _, o := range convention.Options() {
			list = append(list, o.Name+"=")
		}
		return list
	}
	variants := fixed(slices.Concat(accel.Levels, deviceVariants)...)
	same := fixed(append([]string{"same"}, arch.Names()...)...)
	return map[string]func(*cobra.Command) []string{
		"color": fixed(colorModes...), "format": fixed(report.Formats...), "fail-on": fixed("fail", "warn"),
		"profile": func(*cobra.Command) []string { return append(convention.ProfileNames(), "none") },
		"select":  ids, "ignore": ids, "require": ids, "suite": fixed("projection", "checkpoint", "vram", "dump"),
		"dump set": options, "profiles format": fixed("human", "json"),
		"diff relation": fixed("repeat", "partition", "padding", "permute", "resume", "toggle="),
		"log kind":      fixed(runlog.Kinds...),
		"ops variant":   variants, "ops require": variants,
		"ops run": func(*cobra.Command) (list []string) {
			for _, k := range kernels() {
				list = append(list, k.Name)
			}
			return list
		},
		"model": fixed(arch.Names()...), "checkpoint plan": fixed(arch.Names()...), "checkpoint needs": fixed(checkpoint.Needable...),
		"projection kind": fixed("flat", "side"), "shard-plan engine": fixed("kubernetes", "slurm"),
		"vram stack": fixed("hf", "plumbline"), "vram optimizer": fixed(vram.Optimisers...), "vram policy": fixed(vram.Policies...),
		"vram dtype": fixed("float16", "bfloat16", "float32"), "vram autocast": fixed("bfloat16", "float16"), "vram attention": fixed("eager", "sdpa"),
		"vram head": fixed(vram.FusedHead, vram.FusedTorch), "vram kv": fixed("16", "int8"), "vram reference": fixed("adapter", "copy"),
		"vram critic": same, "vram reward": same,
		"golden entry": func(*cobra.Command) []string {
			set, err := golden.Embedded(context.Background())
			if err != nil {
				return nil
			}
			defer set.Close()
			var functions []string // kl of kl/0007: the parts of all entries are thousands
			for _, id := range set.IDs() {
				function, _, _ := strings.Cut(id, "/")
				functions = append(functions, function)
			}
			slices.Sort(functions)
			return slices.Compact(functions)
		},
	}
}

// completeValues offers the values of flags to the shell. A flag that names a file or a folder keeps the shell's own completion. cobra keeps what
// is registered for as long as the program runs, with the commands, so that only a shell's question registers it.
func completeValues(root *cobra.Command) {
	for name, list := range values() {
		command, flag, of := strings.Cut(name, " ")
		if !of {
			command, flag = "", name
		}
		for _, cmd := range append(root.Commands(), root) {
			if cmd.Flag(flag) == nil || flag == "color" && cmd != root || of && cmd.Name() != command {
				continue
			}
			if _, own := values()[cmd.Name()+" "+flag]; own && !of {
				continue
			}
			_ = cmd.RegisterFlagCompletionFunc(flag, func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
				words := list(cmd)
				directive := cobra.ShellCompDirectiveNoFileComp
				if slices.ContainsFunc(words, func(w string) bool { return strings.HasSuffix(w, "=") }) {
					directive |= cobra.ShellCompDirectiveNoSpace
				}
				if flag == "model" || flag == "plan" || flag == "critic" || flag == "reward" { // or a folder
					directive = cobra.ShellCompDirectiveDefault
				}
				return words, directive
			})
		}
	}
}

// near is the end of a message about a word that is none of the known ones: the nearest of them, where one is near.
func near(word string, known []string) string {
	if n := check.Similar(word, known); n != "" {
		return "; did you mean " + strconv.Quote(n) + "?"
	}
	return ""
}
