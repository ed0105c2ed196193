package dump

import (
	"fmt"
	"slices"
	"strings"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// NoProfile is the profile of those who declare none: every option that the files leave open is searched.
const NoProfile = "none"

// families are the profiles by framework and algorithm, without their versions.
var families = map[string]string{"trl/grpo": "trl-grpo", "trl/rloo": "trl-rloo", "trl/ppo": "trl-ppo", "verl/ppo": "verl-ppo", "verl/gae": "verl-ppo",
	"verl/grpo": "verl-grpo", "openrlhf/ppo": "openrlhf-ppo", "openrlhf/grpo": "openrlhf-group", "openrlhf/rloo": "openrlhf-group",
	"openrlhf/reinforce++": "openrlhf-group", "cleanrl/ppo": "cleanrl", "open-instruct/grpo": "open-instruct", "nemo-rl/grpo": "nemo-grpo", "nemo-rl/ppo": "nemo-ppo",
	"liger/grpo": "liger-grpo"}

// familyOf returns the family that a file's framework and algorithm name, "" if none.
func familyOf(m dump.Meta) string { return families[strings.ToLower(m.Framework+"/"+m.Algorithm)] }

// suggestion returns the profile that the framework, version and algorithm of a file suggest, nil if none.
func suggestion(m dump.Meta) *convention.Profile {
	family := familyOf(m)
	if family == "" {
		return nil
	}
	for _, name := range []string{family + "@" + m.Version, family} {
		if p, _, err := convention.Lookup(name); err == nil {
			return p
		}
	}
	return nil
}

// fromFiles declares the profile of the release that the files say they are of. What another release computes is not known: then
// the options are searched, and the finding says which profile is the nearest.
func (s *session) fromFiles(m dump.Meta) {
	p := s.suggest
	if p == nil {
		return
	}
	switch {
	case m.Version == "":
		s.profile = p
		s.say(fmt.Sprintf("profile: %s (the files say %s %s and no version; this is the newest known)", p.Name, m.Framework, m.Algorithm))
	case sameRelease(p, m.Version):
		s.profile = p
		s.say(fmt.Sprintf("profile: %s (the files say %s %s %s)", p.Name, m.Framework, m.Version, m.Algorithm))
	case !since(p, m.Version):
		addLine(&s.input.profile, fmt.Sprintf("the files say %s %.32s, a release before the first that a profile is of: all options were searched; the nearest is %s, which may mean something else", m.Framework, m.Version, p.Name))
	default:
		addLine(&s.input.profile, fmt.Sprintf("the files say %s %.32s, a release that no profile is of: all options were searched; declare --profile %s if nothing has changed since, or --profile none", m.Framework, m.Version, p.Name))
	}
}

// since reports whether a version is not before that of a profile; commits have no order.
func since(p *convention.Profile, version string) bool {
	family, of, _ := strings.Cut(p.Name, "@")
	_, _, err := convention.Lookup(family + "@" + version)
	return err == nil || !strings.Contains(of, ".")
}

// sameRelease reports whether a profile is of a version: of the same release, or of one with the same first two numbers.
func sameRelease(p *convention.Profile, version string) bool {
	version = strings.TrimPrefix(version, "v")
	_, of, _ := strings.Cut(p.Name, "@")
	return slices.ContainsFunc([]string{of, p.Release}, func(known string) bool {
		return known == version || strings.HasPrefix(version, known+".") && strings.Contains(known, ".")
	})
}

// claimed looks at a profile that was declared by name, by the user or by the files.
func (s *session) claimed(name, warning string, m dump.Meta) {
	_, version, versioned := strings.Cut(name, "@")
	switch {
	case warning == "":
	case versioned && !sameRelease(s.profile, version):
		addLine(&s.input.profile, warning)
	default:
		s.say("WARN: " + warning)
	}
	family := familyOf(m)
	of, _, _ := strings.Cut(s.profile.Name, "@")
	switch {
	case family != "" && family != of:
		addLine(&s.input.profile, fmt.Sprintf("the files say %s %.32s %s, and %s is of %s: their options have other names and other defaults", m.Framework, m.Version, m.Algorithm, s.profile.Name, s.profile.Framework))
	case family == "" && strings.EqualFold(m.Framework, s.profile.Framework) || family != "" && s.suggest != nil && (m.Version == "" || sameRelease(s.profile, m.Version)):
	case family == "" && knownFramework(m.Framework):
		addLine(&s.input.profile, fmt.Sprintf("the files say %s %.32s, and %s is of %s", m.Framework, m.Version, s.profile.Name, s.profile.Framework))
	case family != "":
		s.say(fmt.Sprintf("WARN: the files say %s %.32s, and %s is of %s", m.Framework, m.Version, s.profile.Name, s.profile.Release))
	}
}

// knownFramework reports whether there are profiles of a framework.
func knownFramework(name string) bool {
	return slices.ContainsFunc(convention.AllProfiles(), func(p *convention.Profile) bool {
		return strings.EqualFold(p.Framework, name) && p.Framework != "plumbline" // whose trainers follow other frameworks
	})
}

// unknownOptions takes down the options that nobody reads: every one where all names of the release are known, so that another one
// is a mistake or of another release, and elsewhere those near to a name that is read. A configuration file has much else in it.
func (s *session) unknownOptions(what, framework string, d *convention.Declared, strict bool) {
	if len(d.Unknown) == 0 {
		return
	}
	strict = strict && d.Table != "" && d.Warning == ""
	read := append(convention.Names(), convention.KnownNative(framework)...)
	for _, text := range d.Unknown {
		name, near, _ := strings.Cut(strings.TrimSuffix(text, ")"), " (nearest: ")
		m := meant(name, read, nil)
		switch {
		case stage.SaysLag(name): // the checks of the engine read it
		case m != "":
			addLine(&s.input.names, fmt.Sprintf("the option %.64q of %s is not read; did you mean %s?", name, what, m))
		case strict:
			addLine(&s.input.names, fmt.Sprintf("the option %.64q of %s is not read: %s has none of that name; the nearest is %s", name, what, d.Table, near))
		}
	}
}
