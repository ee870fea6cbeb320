"""What this machine is and does: compilers and GPUs, the build of the fork, downloads, programs run to their end."""
