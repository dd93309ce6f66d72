# Models trained with softmax and with the truncated series, each tested with the attention of all.
#   sh experiments/truncation.sh       needs the runs of experiments/small.yaml
set -e
tested="softmax taylor_1 taylor_2 taylor_3 taylor_4 taylor_6 taylor_8 taylor_10"
for seed in 0 1 2; do
    folders=""
    for name in $tested; do folders="$folders runs/small/$name-seed$seed"; done
    softattn evaluate $folders --variant $tested --results experiments/truncation.csv
done
