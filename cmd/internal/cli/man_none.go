//go:build !man

package cli

import "github.com/spf13/cobra"

// WithMan adds nothing: the command man is of a build with the tag man, see make man.
func WithMan(*cobra.Command) {}
