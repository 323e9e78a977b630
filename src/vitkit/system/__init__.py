"""The machine under a run: devices, the processes of a run, files, progress. Imports no other
package."""
