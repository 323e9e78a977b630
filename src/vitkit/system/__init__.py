"""The machine of a run: devices, the processes of a run, files, progress. Imports no other
package."""
