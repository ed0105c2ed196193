package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"plumbline/cmd/internal/cli"
	"plumbline/verify/convention"
	"plumbline/verify/report"
)

func newProfiles() *cobra.Command {
	var form string
	cmd := &cobra.Command{
		Use:   "profiles [NAME [NAME]]",
		Short: "prints the profiles, the options of one, or what two of them do differently",
		Long: `A profile is what one framework in one version computes, option by option.
A value is a number or a name; none: there is such a thing and it is off; ?: not known, and searched; –: does not apply.
"executed" means that running the release gave the numbers that this value gives, "read" that it was read in the source.`,
		Example: `  verify profiles
  verify profiles trl-grpo@1.16
  verify profiles trl-grpo@1.16 verl-grpo@0.9
  verify profiles --format json verl-ppo@0.9`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if form != "human" && form != "json" {
				return usageError{fmt.Sprintf("--format %q: want human or json", form)}
			}
			if len(args) > 2 {
				return usageError{fmt.Sprintf("profiles takes at most two names, not %d", len(args))}
			}
			var named []*convention.Profile
			for _, name := range args {
				p, warning, err := convention.Lookup(name)
				if err != nil {
					return usageError{err.Error()}
				}
				if warning != "" {
					fmt.Fprintln(cmd.ErrOrStderr(), "verify: warning:", warning)
				}
				named = append(named, p)
			}
			if form == "json" {
				return profilesJSON(cmd.OutOrStdout(), named)
			}
			w := cli.Screen(cmd)
			defer w.Close()
			switch {
			case len(named) == 0:
				return listProfiles(w)
			case len(named) == 1:
				return printProfile(w, named[0])
			}
			return printDifferences(w, named[0], named[1])
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return convention.ProfileNames(), cobra.ShellCompDirectiveNoFileComp
		},
	}
	cmd.Flags().StringVar(&form, "format", "human", "form of the output: human, json")
	return cmd
}

func listProfiles(w io.Writer) error {
	var rows [][]string
	for _, p := range convention.AllProfiles() {
		rows = append(rows, []string{p.Name, p.Framework, p.Release, p.Algorithm, p.Base})
	}
	return report.Table(w, []string{"profile", "framework", "version", "algorithm", "based on"}, rows)
}

func printProfile(w io.Writer, p *convention.Profile) error {
	fmt.Fprintf(w, "%s  (%s %s, %s)\n", p.Name, p.Framework, p.Release, p.Algorithm)
	if p.Base != "" {
		fmt.Fprintf(w, "based on %s\n", p.Base)
	}
	for _, note := range p.Notes {
		fmt.Fprintf(w, "  - %s\n", note)
	}
	fmt.Fprintln(w)
	var rows [][]string
	for _, s := range p.Settings() {
		rows = append(rows, []string{s.Option.Name, s.String(), known(s), s.Option.Doc})
	}
	return report.Table(w, []string{"option", "value", "known by", "what it decides"}, rows)
}

// known says how the value of a setting is known, and from which profile if it is a base.
func known(s convention.Setting) string {
	if !s.Value.Known() {
		return ""
	}
	return s.Evidence.String() + ", " + s.Origin
}

func printDifferences(w io.Writer, a, b *convention.Profile) error {
	var rows [][]string
	for _, d := range convention.Diff(a, b) {
		rows = append(rows, []string{d.A.Option.Name, d.A.String(), d.B.String(), d.A.Option.Doc})
	}
	if len(rows) == 0 {
		_, err := fmt.Fprintf(w, "%s and %s have the same value of every option.\n", a.Name, b.Name)
		return err
	}
	return report.Table(w, []string{"option", a.Name, b.Name, "what it decides"}, rows)
}

// settingJSON is what a profile says of an option. Value is the text that --set takes, without one null.
type settingJSON struct {
	State    string   `json:"state"` // known, unknown, not_applicable
	Value    *string  `json:"value"`
	Among    []string `json:"among,omitempty"`
	Evidence string   `json:"evidence,omitempty"`
	Origin   string   `json:"origin"`
}

type optionJSON struct {
	Name   string             `json:"name"`
	Type   string             `json:"type"`
	Legal  string             `json:"legal"`
	Doc    string             `json:"doc"`
	Source string             `json:"source"`
	Stages []convention.Stage `json:"stages"`
}

type profileJSON struct {
	Name      string                 `json:"name"`
	Framework string                 `json:"framework"`
	Version   string                 `json:"version"`
	Algorithm string                 `json:"algorithm"`
	Base      string                 `json:"base,omitempty"`
	Notes     []string               `json:"notes"`
	Settings  map[string]settingJSON `json:"settings"`
}

// profilesJSON prints the named profiles, or all, and the options; of two also the names of those that differ.
func profilesJSON(w io.Writer, named []*convention.Profile) error {
	out := struct {
		SchemaVersion int           `json:"schema_version"`
		Options       []optionJSON  `json:"options"`
		Profiles      []profileJSON `json:"profiles"`
		Differences   *[]string     `json:"differences,omitempty"`
	}{SchemaVersion: 1}
	for _, o := range convention.Options() {
		out.Options = append(out.Options, optionJSON{o.Name, o.Type.String(), o.Legal(), o.Doc, o.Source, append([]convention.Stage{}, o.Stages...)})
	}
	list := named
	if len(list) == 0 {
		list = convention.AllProfiles()
	}
	for _, p := range list {
		j := profileJSON{p.Name, p.Framework, p.Release, p.Algorithm, p.Base, p.Notes, map[string]settingJSON{}}
		for _, s := range p.Settings() {
			j.Settings[s.Option.Name] = settingOf(s)
		}
		out.Profiles = append(out.Profiles, j)
	}
	if len(named) == 2 {
		names := []string{}
		for _, d := range convention.Diff(named[0], named[1]) {
			names = append(names, d.A.Option.Name)
		}
		out.Differences = &names
	}
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(out)
}

func settingOf(s convention.Setting) settingJSON {
	j := settingJSON{State: "known", Origin: s.Origin}
	switch {
	case s.Value.Known():
		text := s.Value.String()
		j.Value, j.Evidence = &text, s.Evidence.String()
	case s.Value.Kind() == convention.NotApplicable:
		j.State = "not_applicable"
	default:
		j.State = "unknown"
	}
	for _, v := range s.Among {
		j.Among = append(j.Among, v.String())
	}
	return j
}
