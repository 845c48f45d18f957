#!/bin/sh
# One process at a time writes in a run's folder: a second start is refused before it writes anything, whatever has been
# killed before, and all ranks must see the folder. test_lock.sh MXLUA [MPIRUN]
. "$(dirname "$0")/checks.sh"

common="model_name=tiny max_target_length=16 per_device_batch_size=1 base_num_decoder_layers=1 log_period=1000000"
train() {
    run "$mxlua" --threads 1 "$root/scripts/train.lua" $common "$@"
}

# forever RUN: a run in the background, its process in $holder, once it has begun to train.
forever() {
    "$mxlua" --threads 1 "$root/scripts/train.lua" $common run_name="$1" steps=100000000 >holder_out 2>&1 &
    holder=$!
    for _ in $(seq 200); do
        grep -q '1/100000000' holder_out && break
        sleep 0.1
    done
}

fails() { # PATTERN
    exits 1
    matches "$1"
}

refused() { # PATTERN: of the only line
    fails "$1"
    holds "more than one line" [ "$(wc -l <out)" = 1 ]
}

sleep 1000 & # a process that has nothing to do with us
other=$!
trap 'rm -rf "$folder"; kill $other 2>/dev/null' EXIT

case="a second start is refused and writes nothing"
forever a
cp checkpoints/a/config.yml before
files=$(ls checkpoints/a)
train run_name=a steps=3 learning_rate=1
refused "checkpoints/a is in use by process $holder on this host ($(hostname)) since 20[0-9-]* [0-9:]*; wait for its end"
holds "config.yml was replaced" cmp -s before checkpoints/a/config.yml
holds "files came or went" [ "$files" = "$(ls checkpoints/a)" ]
run "$mpirun" -n 2 "$mxlua" --threads 1 "$root/scripts/train.lua" $common run_name=a steps=3
refused "checkpoints/a is in use by process $holder"
train run_name=b steps=2
holds "another run_name is free" [ $status -eq 0 ]
holds "the lock of a run that has ended is gone" [ ! -e checkpoints/b/run.lock ]

case="a run that was killed is no obstacle"
kill -9 $holder
wait $holder 2>/dev/null
holds "its lock is there" [ -e checkpoints/a/run.lock ]
train run_name=a steps=2
works
holds "it is told" grep -q "run.lock was left by process $holder .*taken over" out
holds "the lock is gone" [ ! -e checkpoints/a/run.lock ]
train run_name=a steps=4
lacks "nothing was left this time" grep -q "taken over" out

case="its process number is that of another process now"
forever a
sed "s/\"process\":$holder/\"process\":$other/" checkpoints/a/run.lock >changed
kill -9 $holder
wait $holder 2>/dev/null
cp changed checkpoints/a/run.lock
train run_name=a steps=6
works
holds "it is told" grep -q "taken over" out

case="asked to stop"
forever a
kill -TERM $holder
wait $holder
holds "the lock is gone" [ ! -e checkpoints/a/run.lock ]

case="ranks that end with an error"
cat >fail.lua <<'LUA'
local mx = require "mx"
local gradients = mx.train.gradients
mx.train.gradients = function(...)
    if arg[0] then
        error("gone wrong", 0)
    end
    return gradients(...)
end
LUA
run "$mpirun" -n 2 "$mxlua" --threads 1 -e "$(cat fail.lua)" "$root/scripts/train.lua" $common run_name=d steps=3
holds "no error" grep -q "gone wrong" out
holds "the lock is gone" [ ! -e checkpoints/d/run.lock ]

case="a lock of another host"
sed 's/"boot":"[^"]*"/"boot":"other"/; s/"host":"[^"]*"/"host":"node7"/' changed >foreign
cp foreign checkpoints/a/run.lock
touch -d '5 hours ago' checkpoints/a/run.lock
train run_name=a steps=3
refused "in use by process $other on host node7 .* last sign of life came 180[0-9][0-9] s ago.*remove checkpoints/a/run.lock"
holds "it stays" cmp -s foreign checkpoints/a/run.lock

case="this machine has been started again since"
sed 's/"boot":"[^"]*"/"boot":"other"/' changed >checkpoints/a/run.lock
train run_name=a steps=3
refused "in use by process"
touch -d '5 minutes ago' checkpoints/a/run.lock
train run_name=a steps=3
works
holds "it is told" grep -q "taken over" out

case="a lock that says nothing"
: >checkpoints/a/run.lock
touch -d '1 minute ago' checkpoints/a/run.lock
train run_name=a steps=3
works
echo mine >checkpoints/a/run.lock
train run_name=a steps=3
refused "is no lock of ours: remove it"
rm checkpoints/a/run.lock
ln -s /etc/passwd checkpoints/a/run.lock
train run_name=a steps=3
refused "is no file of ours"
rm checkpoints/a/run.lock

case="many starts at once"
for i in 1 2 3 4; do
    (
        "$mxlua" --threads 1 "$root/scripts/train.lua" $common run_name=c steps=100000000 >out_$i 2>&1 &
        echo $! >pid_$i
        wait
    ) &
done
for _ in $(seq 200); do
    [ "$(grep -l 'is in use by process\|1/100000000' out_[1-4] 2>/dev/null | wc -l)" = 4 ] && break
    sleep 0.1
done
cat out_[1-4] >out
holds "three are refused" [ "$(grep -c 'is in use by process' out)" = 3 ]
for i in 1 2 3 4; do kill "$(cat pid_$i)" 2>/dev/null; done
for i in 1 2 3 4; do
    for _ in $(seq 100); do
        kill -0 "$(cat pid_$i)" 2>/dev/null || break
        sleep 0.1
    done
done
holds "the lock is gone" [ ! -e checkpoints/c/run.lock ]

# Four processes take the lock again and again, and are killed now and then: no two ever have it at once.
case="taken by many, killed at random"
cat >often.lua <<'LUA'
local mx = require "mx"
local me = io.open("/proc/self/stat"):read("n")
local stop = mx.now() + 1
math.randomseed(me)
while mx.now() < stop do
    local good, lock = pcall(mx.io.lock, "often.lock")
    if good then
        local file = io.open("inside")
        local other = file and file:read("n")
        local stat = other and other ~= me and io.open("/proc/" .. other .. "/stat")
        if stat and not (stat:read("a") or ") Z"):find(") Z", 1, true) then
            print("two inside")
        end
        io.open("inside", "w"):write(me):close()
        if math.random() < 0.03 then
            os.execute("kill -9 " .. me)
        end
        os.remove("inside")
        lock:release()
    elseif not lock:find("is in use by process") and not lock:find("all the time") then
        print(lock)
    end
end
print("done")
LUA
takers=
for i in 1 2 3 4; do
    (for _ in 1 2 3; do "$mxlua" --threads 1 often.lua; done) >often_$i 2>/dev/null &
    takers="$takers $!"
done
wait $takers
cat often_? >out
lacks "two had it, or an error came" grep -qv done out
"$mxlua" --threads 1 -e 'mx.io.lock("often.lock"):release()' >out 2>&1
holds "nothing is left" [ -z "$(ls -d often.lock* 2>/dev/null)" ]

case="a loop of one's own"
cat >own.lua <<'LUA'
local mx = require "mx"
local params = {}
mx.nn.parameter(params, "w", { 3 }, { value = 1 })
local saver = mx.checkpoint.saver { directory = "own", params = params }
saver:save(1, {}, true)
if arg[1] then print("saved") mx.read_line("") end
LUA
mkfifo wait_here
"$mxlua" --threads 1 own.lua wait <wait_here >own_out &
own=$!
exec 3>wait_here
for _ in $(seq 100); do
    grep -q saved own_out && break
    sleep 0.1
done
"$mxlua" --threads 1 own.lua >out 2>&1
holds "a second one is refused" grep -q "own is in use by process" out
exec 3>&-
wait $own
"$mxlua" --threads 1 own.lua >out 2>&1
holds "then it is free" [ $? -eq 0 ]

case="a folder that not all ranks see"
mkdir wd1 wd2
run "$mpirun" -n 1 -wdir "$folder/wd1" "$mxlua" --threads 1 "$root/scripts/train.lua" $common steps=1 run_name=a : \
    -n 1 -wdir "$folder/wd2" "$mxlua" --threads 1 "$root/scripts/train.lua" $common steps=1 run_name=a
refused "checkpoints/a is not one folder for all ranks: rank 1 ($(hostname)) cannot see what rank 0 ($(hostname)) writes"
holds "nothing is left there" [ ! -e wd2/checkpoints ]

case="a folder that is no run's"
mkdir -p checkpoints/src
echo mine >checkpoints/src/script.lua
train run_name=src steps=1
refused "has a file script.lua, which a run would replace"
echo "name: mine" >checkpoints/src/config.yml
train run_name=src steps=1
refused "is not the config of a run"
holds "they stay" [ "$(cat checkpoints/src/script.lua checkpoints/src/config.yml)" = "mine
name: mine" ]

case="links in a run's folder lead nowhere"
echo precious >precious
for name in log.txt metrics.jsonl; do
    rm -f checkpoints/b/$name
    ln -s "$folder/precious" checkpoints/b/$name
    train run_name=b steps=3
    fails "symbolic link"
    rm checkpoints/b/$name
done
mkdir elsewhere
rm -r checkpoints/b/tensorboard
ln -s "$folder/elsewhere" checkpoints/b/tensorboard
train run_name=b steps=3
fails "symbolic link"
rm checkpoints/b/tensorboard
for name in config.yml script.lua heartbeat.json parameters.h5; do
    mv checkpoints/b/$name kept_$name
    ln -s "$folder/kept_$name" checkpoints/b/$name
    cp kept_$name copy_$name
done
ln -s "$folder/elsewhere" checkpoints/b/step_4.tmp
train run_name=b steps=4
works
for name in config.yml script.lua heartbeat.json parameters.h5; do
    holds "$name was written through a link" cmp -s copy_$name kept_$name
done
holds "something was written elsewhere" [ "$(cat precious)$(ls elsewhere)" = precious ]

end
