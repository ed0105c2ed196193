package config

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

var interpolation = regexp.MustCompile(`\$\{([^{}$]*)\}`)

// interpolated replaces ${key} in text. path holds the keys that led here; whole, what was found for others, so that a key that
// many refer to is followed once.
func (s *Settings) interpolated(text string, path []string, whole map[string]string) (string, error) {
	var b strings.Builder
	done := 0
	for _, m := range interpolation.FindAllStringSubmatchIndex(text, -1) {
		b.WriteString(text[done:m[0]])
		done = m[1]
		inner, err := s.reference(text[m[2]:m[3]], path, whole)
		if err != nil {
			return "", err
		}
		if b.Len()+len(inner) > maxBytes {
			return "", errors.New("grows beyond all bounds")
		}
		b.WriteString(inner)
	}
	if b.Len()+len(text)-done > maxBytes {
		return "", errors.New("grows beyond all bounds")
	}
	b.WriteString(text[done:])
	return b.String(), nil
}

// reference returns what stands for ${name}.
func (s *Settings) reference(name string, path []string, whole map[string]string) (string, error) {
	f, err := s.find(name)
	switch {
	case err != nil:
		return "", fmt.Errorf("${%.80s}: %w", name, err)
	case slices.Contains(path, f.Name):
		return "", fmt.Errorf("${%s} leads back to itself: %s", name, strings.Join(append(path, f.Name), " -> "))
	case f.list != nil:
		return "", fmt.Errorf("${%s} is a list", name)
	}
	if v, ok := whole[name]; ok {
		return v, nil
	}
	text := fmt.Sprint(f.def)
	if f.raw != nil {
		text = f.raw.text
	}
	v, err := s.interpolated(text, append(slices.Clone(path), f.Name), whole)
	if err == nil {
		whole[name] = v
	}
	return v, err
}
