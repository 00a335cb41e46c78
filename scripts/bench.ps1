# The published loops: ten runs of each of the twelve cells, a line with the Gbps of each run.
#
#     powershell -ExecutionPolicy Bypass -File scripts\bench.ps1                         every cell
#     powershell -ExecutionPolicy Bypass -File scripts\bench.ps1 -Netstack smoltcp       one stack
#     powershell -ExecutionPolicy Bypass -File scripts\bench.ps1 -Mode reader -Runs 3    one direction, three runs
#
# Windows' default policy runs no scripts, so each command lifts it for itself. Options that go to every run are a list, which -File
# does not take:
#
#     powershell -ExecutionPolicy Bypass -Command ".\scripts\bench.ps1 -Options '--mtu','9000'"
#
# Run it in a PowerShell with administrator privileges: Wintun makes a network adapter.

[CmdletBinding()]
param(
    [ValidateSet('lwip', 'ipstack', 'smoltcp')][string[]]$Netstack = @('lwip', 'ipstack', 'smoltcp'),
    [ValidateSet('reader', 'writer')][string[]]$Mode = @('reader', 'writer'),
    [ValidateRange(1, 1000)][int]$Runs = 10,
    [string[]]$Options = @()
)

# The program writes details to standard error. That is not an error of the script.
$ErrorActionPreference = 'Continue'
Set-Location (Join-Path $PSScriptRoot '..')

cargo build --release --quiet --locked
if ($LASTEXITCODE -ne 0) { exit $LASTEXITCODE }

$failures = 0
$news = New-TemporaryFile
foreach ($stack in $Netstack) {
    foreach ($runtime in 'current-thread', 'multi-thread') {
        foreach ($direction in $Mode) {
            $arguments = @('--mode', $direction, '--netstack', $stack)
            if ($runtime -eq 'current-thread') { $arguments += '--current-thread' }
            Write-Output ''
            Write-Output "$stack, $runtime, $direction"
            1..$Runs | ForEach-Object {
                .\target\release\rust-tun-perf.exe @arguments @Options 2> $news.FullName |
                    Select-String -Pattern 'Gbps'
                # A failed run has printed its reason. The others continue.
                if ($LASTEXITCODE -ne 0) {
                    $failures++
                    Get-Content $news.FullName | Select-String -Pattern 'error:'
                }
            }
        }
    }
}
Remove-Item $news.FullName
if ($failures -gt 0) {
    Write-Output "$failures runs failed"
    exit 1
}
