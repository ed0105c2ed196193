package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"plumbline/cmd/internal/cli"
	"plumbline/internal/config"
)

// withKeys adds the keys of a trainer to its help, with what they are under the configuration of --config or without one. of returns
// the keys and the configuration that is read without one; trainer is what the configuration says of itself.
func (f *trainFlags) withKeys(cmd *cobra.Command, of func(trainer string) (keys *config.Settings, fallback string)) {
	f.complete(cmd, of)
	cmd.SetHelpFunc(func(c *cobra.Command, args []string) {
		c.Root().HelpFunc()(c, args)
		w := cli.Screen(c)
		defer w.Close()
		s, name := of(trainerOf(f.config, nil))
		s.Open = openConfig
		if f.config != "" {
			name = f.config
		}
		if s.ReadFile(name) != nil || s.Resolve() != nil {
			fmt.Fprintf(w, "\n%s cannot be read as a configuration of %s.\n", name, c.CommandPath())
			return
		}
		fmt.Fprintf(w, "\nKeys, as they are in --config %s. KEY=VALUE is stronger than TRAIN_KEY=VALUE in the environment (A__B for a.b), and that than the configuration.\n", name)
		printKeys(w, s)
	})
}

// printKeys writes a line for each key: what it is set to, and what it means.
func printKeys(w io.Writer, s *config.Settings) {
	const most = 44 // a longer one pushes its meaning to the next line
	for _, key := range s.Fields() {
		text := key.String()
		if len([]rune(text)) > most {
			text += fmt.Sprintf("\n  %-*s", most, "")
		}
		fmt.Fprintf(w, "  %-*s  %s\n", most, text, key.Doc)
	}
}
