// Package documented reads the commands that the README and the pages of docs show, for the tests of the programs.
package documented

import (
	"os"
	"path/filepath"
	"strings"
)

// Command is a line of a shell block that calls a program.
type Command struct {
	Page, Line string
	Args       []string // behind the name of the program
}

// Commands returns the lines that call a program in the shell blocks of root/README.md and root/docs/*.md, up to a comment or what the shell
// does next.
func Commands(root, program string) ([]Command, error) {
	names, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		return nil, err
	}
	var all []Command
	for _, page := range append(names, filepath.Join(root, "README.md")) {
		text, err := os.ReadFile(page)
		if err != nil {
			return nil, err
		}
		inside := false
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, "```") {
				inside = !inside && strings.HasPrefix(line, "```sh")
				continue
			}
			args, ok := strings.CutPrefix(strings.TrimPrefix(strings.TrimSpace(line), "go run ./cmd/"), program+" ")
			if inside && ok {
				all = append(all, Command{page, line, words(args)})
			}
		}
	}
	return all, nil
}

// words splits a line of a shell up to the end of its first command; quotes hold words together.
func words(line string) (list []string) {
	word, quote, any := "", rune(0), false
	for _, c := range line + " " {
		switch {
		case quote != 0 && c == quote:
			quote = 0
		case quote != 0:
			word += string(c)
		case c == '\'' || c == '"':
			quote, any = c, true
		case c == ' ':
			if word != "" || any {
				list = append(list, word)
			}
			word, any = "", false
		case strings.ContainsRune("|>;&#", c) && word == "":
			return list
		default:
			word += string(c)
		}
	}
	return list
}
